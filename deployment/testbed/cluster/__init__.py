"""A real Kubernetes cluster of several nodes on one machine, for tests and experiments. It leaves nothing behind.

Here: control plane and nodes as ordinary processes, their network, certificates and images, and the faults of a node. A
node is a network namespace and a mount namespace with containerd, kubelet and kube-proxy inside. So it has its own
loopback, /run, /var/lib/kubelet and service rules, and all of them vanish with its last process. Every process, also
those of pods, is in one cgroup tree: killing that tree ends the cluster. Not here: programs that run on the cluster.
Standard library only.
"""

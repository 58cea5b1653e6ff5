"""A real Kubernetes cluster on one machine, for tests and for trying things: several nodes, nothing left behind.

What belongs here: control plane and nodes as ordinary processes, their network, certificates and images, and the
ways a node dies. A node is a network and a mount namespace of its own with containerd, kubelet and kube-proxy in
it, so that it has its own loopback, /run, /var/lib/kubelet and service rules, and so that all of that vanishes with
its last process. Every process, those of pods too, is in one cgroup tree: ending that tree ends the cluster. What runs
on the cluster belongs elsewhere. Standard library only.
"""

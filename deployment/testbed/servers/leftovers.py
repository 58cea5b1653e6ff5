"""Leftovers of a folder's servers: marked processes, ports, mounts. Checked after `down`; an empty list is right."""

from pathlib import Path

from deployment.testbed.processes import Process, family, is_listening, process_of
from deployment.testbed.servers.servers_record import HOST, MARK, ServersRecord


def marked_processes(folder: Path) -> list[Process]:
    """Return processes whose environment names `folder` as theirs, recorded or not."""
    mark = f"{MARK}={folder}".encode()
    found: list[Process] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
        process = process_of(f"a server of {folder}", int(entry.name)) if mark in environment else None
        if process is not None:
            found.append(process)
    return found


def mounts_below(folder: Path) -> list[str]:
    """Return mount points in `folder`. Removing the folder would delete the mounted files."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [point for point in mounted if Path(point).is_relative_to(folder)]


def leftovers(record: ServersRecord) -> list[str]:
    """Return a line for each leftover."""
    families = {member.pid: member for process in record.processes.values() for member in family(process)}
    families |= {process.pid: process for process in marked_processes(record.path)}
    left = [f"process {pid} ({process.name})" for pid, process in families.items()]
    left += [f"port {port} ({name})" for name, port in record.ports.items() if is_listening(port, HOST)]
    left += [f"mount {point}" for point in mounts_below(record.path)]
    folders = {record.folder, record.database_folder}
    return left + [f"folder {folder}" for folder in sorted(folders) if Path(folder).exists()]

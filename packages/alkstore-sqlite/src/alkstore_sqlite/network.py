"""Which file systems are on a network, as far as it can be told without touching a file."""

import os
import re
from typing import Final

__all__ = ["reason", "reason_on_linux", "reason_on_windows"]

_MACHINES: Final = "a file system that many machines share"
_NFS: Final = "a network file system (NFS)"
_SMB: Final = "a network file system (SMB)"
_REMOTE: Final = "a file system of another machine"
_OBJECTS: Final = "an object store"
_HOST: Final = "a file system that another system shares with this one"

_REASONS: Final = {
    "nfs": _NFS,
    "nfs4": _NFS,
    "fuse.nfs": _NFS,
    "cifs": _SMB,
    "smb3": _SMB,
    "smbfs": _SMB,
    "fuse.smbnetfs": _SMB,
    "afs": _REMOTE,
    "coda": _REMOTE,
    "ncpfs": _REMOTE,
    "fuse.sshfs": _REMOTE,
    "fuse.davfs": _REMOTE,
    "fuse.curlftpfs": _REMOTE,
    "beegfs": _MACHINES,
    "ceph": _MACHINES,
    "fuse.ceph": _MACHINES,
    "fuse.ceph-fuse": _MACHINES,
    "gfs2": _MACHINES,
    "glusterfs": _MACHINES,
    "fuse.glusterfs": _MACHINES,
    "gpfs": _MACHINES,
    "fuse.juicefs": _MACHINES,
    "lustre": _MACHINES,
    "fuse.mfs": _MACHINES,
    "ocfs2": _MACHINES,
    "orangefs": _MACHINES,
    "pvfs2": _MACHINES,
    "fuse.seaweedfs": _MACHINES,
    "fuse.blobfuse2": _OBJECTS,
    "fuse.gcsfuse": _OBJECTS,
    "fuse.geesefs": _OBJECTS,
    "fuse.goofys": _OBJECTS,
    "fuse.rclone": _OBJECTS,
    "fuse.s3fs": _OBJECTS,
    "9p": _HOST,
    "prl_fs": _HOST,
    "vboxsf": _HOST,
    "vmhgfs": _HOST,
    "fuse.vmhgfs-fuse": _HOST,
}
"""Types of file systems, as /proc/self/mountinfo has them, on which WAL cannot be relied on: it needs memory shared
between all who have the file open, and locks that bind them all. Types that are not here may be as bad; nothing is said
of them. Source: https://sqlite.org/wal.html, "does not work over a network filesystem".
"""


def reason(path: str) -> str | None:
    """Say on what kind of network file system a path is, or None if it is on none, or it cannot be told.

    Args:
        path: Absolute, without links; the file need not be there.
    """
    if os.name == "nt":
        return reason_on_windows(path)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return reason_on_linux(path, file.read())
    except OSError:  # not Linux, or no /proc: nothing can be told
        return None


def reason_on_linux(path: str, mountinfo: str) -> str | None:
    """The same, with the text of /proc/self/mountinfo; lines in another form are passed over."""
    nearest, kind = "", ""
    for line in mountinfo.split("\n"):
        fields, _, rest = line.partition(" - ")
        parts = fields.split(" ")
        if len(parts) < 6 or not rest:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), parts[4])
        # Of two on one point the later one hides the earlier one.
        if len(point) >= len(nearest) and (path == point or path.startswith(f"{point.rstrip('/')}/")):
            nearest, kind = point, rest.split(" ")[0]
    return _REASONS.get(kind)


def reason_on_windows(path: str) -> str | None:
    r"""The same for a path of Windows: one that names a server. Of a drive that stands for one nothing can be told."""
    is_remote = re.match(r"[\\/]{2}([^?.\\/]|\?\\UNC\\)", path, re.IGNORECASE)
    return "a network share" if is_remote else None

"""A small disk for a process under test: a tmpfs that only this process sees, and that goes away with it."""

import errno
import os
import pathlib
import subprocess


class SmallDisk:
    """available is False where neither root nor a user namespace may mount one."""

    def __init__(self, directory, size):
        self.directory = pathlib.Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        script = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
        wrappers = [["unshare", *how, "sh", "-c", script, str(self.directory)] for how in (["-m"], ["-r", "-m"])]
        usable = [words for words in wrappers if self.works(words)]
        self.available = bool(usable)
        self.before = usable[0] if usable else []  # for Server(before=...)

    @staticmethod
    def works(words):
        try:
            return subprocess.run([*words, "true"], capture_output=True).returncode == 0
        except OSError:
            return False

    def ballast(self, process):
        return pathlib.Path(f"/proc/{process.pid}/root{self.directory}/ballast")

    def fill(self, process):
        """To the last page, as the process sees it."""
        with open(self.ballast(process), "ab") as file:
            step = 1 << 24
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def empty(self, process):
        self.ballast(process).unlink()

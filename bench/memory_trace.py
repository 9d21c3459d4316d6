"""The memory of a program while it runs, from Linux's /proc."""

import pathlib
import subprocess
import tempfile
import time

KEYS = ("VmHWM", "VmData", "RssAnon", "RssFile")


class Unavailable(Exception):
    """This system has no /proc."""


class ProgramFailed(Exception):
    """Its message is what the program wrote on stderr."""


def fields(pid):
    """Those of KEYS in bytes; empty when the process is gone."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {key: int(value.split()[0]) * 1024 for key, value in pairs if key in KEYS}


def trace(command, interval=0.02):
    """Runs a program. -> its standard output, and [(seconds, fields)]."""
    if not pathlib.Path("/proc/self/status").exists():
        raise Unavailable("needs Linux's /proc")
    samples, start = [], time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=err, text=True)
        try:
            while process.poll() is None:
                found = fields(process.pid)
                if "RssAnon" in found:  # not those of a process that has ended
                    samples.append((time.monotonic() - start, found))
                time.sleep(interval)
        finally:
            if process.poll() is None:
                process.kill()
        if process.returncode != 0:
            err.seek(0)
            raise ProgramFailed(err.read().strip())
        out.seek(0)
        return out.read(), samples


def peak(samples, key):
    return max(found[key] for _, found in samples)

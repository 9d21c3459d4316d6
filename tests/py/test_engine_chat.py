"""`quire chat` at a terminal: stopping a reply, typing during one, and a terminal that is left as it was found."""

import os
import pty
import re
import select
import signal
import sys
import termios
import time

import pytest

import engine_models as models
from engine_vocab import sentence_piece
from test_engine_cli import PROGRAM, pytestmark  # noqa: F401 (skips without the engine)

# Never allows the end of a text; its letters are one token each, so a reply is read again as it was written.
ENDLESS = "root ::= [bc] root"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # Endless replies go on until Ctrl-C arrives: on a busy machine that takes thousands of tokens.
    return models.make(tmp_path_factory.mktemp("chat") / "chat.gguf", "llama", layers=1, context=1 << 17,
                       more_keys=sentence_piece(chat_template="chatml"))


# A shell of one job: starts it in the foreground and, when it stops, says whether the terminal echoes; a line on its
# control pipe lets it go on. Without it a stopped job would have nobody to wake it, and the system would not stop it.
SHELL = """
import os, signal, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
control, told = int(sys.argv[1]), int(sys.argv[2])
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[3], sys.argv[3:])
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does: a late ^C is for the job, which may have ended
os.write(told, b"pid %d\\n" % job)
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    echo = bool(termios.tcgetattr(0)[3] & termios.ECHO)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        break
    os.write(told, b"stopped %d\\n" % echo)
    os.read(control, 1)
    os.tcsetpgrp(0, job)
    os.kill(job, signal.SIGCONT)
os.write(told, b"ended %d %d\\n" % (os.waitstatus_to_exitcode(status), echo))
"""


class Chat:
    def __init__(self, model, *arguments):
        command = [PROGRAM, "chat", "-m", str(model), "-t", "1", "--ctx", "200000", "--kv", "none", *map(str, arguments)]
        control, self.control = os.pipe()
        self.told, told = os.pipe()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.set_inheritable(control, True)
            os.set_inheritable(told, True)
            os.execv(sys.executable, [sys.executable, "-c", SHELL, str(control), str(told), *command])
        os.close(control)
        os.close(told)
        self.output = ""
        self.job = int(self.hear().split()[1])

    def hear(self):
        """A line of the shell. What the job prints meanwhile is read, so that it does not wait for us."""
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.told, self.master], [], [])
            if self.master in ready:
                self.read()
            if self.told in ready:
                byte = os.read(self.told, 1)
                assert byte, self.output
                line += byte
        return line.decode()

    def read(self):
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:
            data = b""
        self.output += data.decode(errors="replace")
        return data

    def wait(self, pattern, start=0):
        """Reads until the output from `start` on has the pattern; the place behind it."""
        while not (found := re.compile(pattern).search(self.output, start)):
            assert self.read(), self.output[-3000:]
        return found.end()

    def type(self, text):
        os.write(self.master, text.encode())

    def settings(self):
        return termios.tcgetattr(self.master)

    def echoes(self):
        return bool(self.settings()[3] & termios.ECHO)

    def wait_for_echo(self, wanted):
        while self.echoes() != wanted:
            self.drain()
            time.sleep(0.01)

    def drain(self):
        while select.select([self.master], [], [], 0)[0] and self.read():
            pass

    def end(self):
        """Exit status, and whether the terminal echoes afterwards."""
        _, status, echo = self.hear().split()
        self.drain()
        os.waitpid(self.pid, 0)
        for fd in (self.master, self.told, self.control):
            os.close(fd)
        return int(status), echo == "1"


def start(model, *arguments, n=100000):
    """A chat whose first prompt is there; the place behind it."""
    chat = Chat(model, "--grammar", ENDLESS, "-n", n, *arguments)
    return chat, chat.wait("> ")


def prefilled(chat):
    return int(re.findall(r"prefill +(\d+) tokens", chat.output)[-1])


def test_ctrl_c_keeps_the_conversation(model):
    chat, at = start(model)
    assert "Ctrl-C stops a reply" in chat.output[:at]
    before = chat.settings()
    chat.type("Tell me all of it.\n")
    at = chat.wait("[bc]{50}", at)
    assert not chat.echoes()
    chat.type("\x03")
    at = chat.wait("> ", at)
    assert chat.settings() == before
    chat.type("/report\n")
    at = chat.wait("cache [^>]*> ", at)
    first = prefilled(chat)
    chat.type("And then?\n")
    at = chat.wait("[bc]{50}", at)
    chat.type("\x03")
    at = chat.wait("> ", at)
    chat.type("/quit\n")
    assert chat.end() == (0, True)
    # The first reply was not computed again: all there was to prefill is the second message and what is around it.
    generated = len(re.findall("[bc]", re.search("[bc]{50,}", chat.output)[0]))
    assert first < 80 and generated >= 50
    assert prefilled(chat) - first < 80
    held = int(re.findall(r"none, (\d+) tokens", chat.output)[-1])
    assert held >= prefilled(chat) + 90


def test_typing_during_a_reply(model):
    """It does not show, and is not sent: the next prompt is empty."""
    chat, at = start(model, n=10000)
    before = chat.settings()
    chat.type("Begin.\n")
    at = chat.wait("[bc]{5}", at)
    chat.type("typed ahead\nand more")
    at = chat.wait("> ", at)
    assert chat.settings() == before
    chat.type("/report\n")
    chat.wait("cache [^>]*> ", at)
    assert "decode   10000 tokens" in chat.output  # one reply, and not a second one
    chat.type("/quit\n")
    assert chat.end() == (0, True)
    assert "ahead" not in chat.output and "and more" not in chat.output and chat.output.count("> ") == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_terminal_after_a_signal(model, number):
    chat, at = start(model)
    chat.type("Begin.\n")
    chat.wait("[bc]{50}", at)
    assert not chat.echoes()
    os.kill(chat.job, number)
    assert chat.end() == (-number, True)


def test_terminal_after_two_ctrl_c(model):
    """More of them end the program, in the reply or at the prompt."""
    chat, at = start(model)
    chat.type("Begin.\n")
    chat.wait("[bc]{50}", at)
    while not select.select([chat.told], [], [], 0)[0]:
        chat.type("\x03")
        chat.drain()
    status, echo = chat.end()
    assert status in (0, -signal.SIGINT) and echo


def test_suspending_a_reply(model):
    """Ctrl-Z gives the terminal back; in the foreground again, the reply goes on without echo."""
    chat, at = start(model)
    before = chat.settings()
    chat.type("Begin.\n")
    at = chat.wait("[bc]{50}", at)
    for _ in range(2):
        chat.type("\x1a")
        assert chat.hear() == "stopped 1\n"
        chat.drain()
        at = len(chat.output)
        os.write(chat.control, b"\n")
        at = chat.wait("[bc]{50}", at)
        chat.wait_for_echo(False)
    chat.type("\x03")
    at = chat.wait("> ", at)
    assert chat.settings() == before
    chat.type("\x1a")  # at the prompt, too
    assert chat.hear() == "stopped 1\n"
    os.write(chat.control, b"\n")
    chat.type("\x04")
    assert chat.end() == (0, True)


def ticks_used(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rsplit(")", 1)[1].split()[11])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ctrl_c_while_the_terminal_takes_nothing(model):
    """A write that Ctrl-C interrupts is not an error: nothing of the reply is lost, and the status is 0."""
    chat, at = start(model)
    chat.type("Begin.\n")
    at = chat.wait("[bc]{50}", at)
    before = -1
    while before != ticks_used(chat.job):  # until it waits, with the terminal full
        before = ticks_used(chat.job)
        time.sleep(0.3)
    os.kill(chat.job, signal.SIGINT)
    at = chat.wait("> ", at)
    chat.type("\x04")
    assert chat.end() == (0, True)
    assert "cannot write" not in chat.output


def test_ctrl_c_at_the_prompt_ends(model):
    chat, _ = start(model)
    chat.type("\x03")
    assert chat.end() == (0, True)

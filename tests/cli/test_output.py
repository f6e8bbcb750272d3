# SPDX-License-Identifier: Apache-2.0
"""Output is written whole or not at all: full disks, interrupts, devices, permissions, terminals."""
import contextlib
import os
import pty
import resource
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest

import numpy

from support import ATOMO, ToolTest, normal, obey_permissions


def limit_memory_to(size):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))


def limit_files_to(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class LittleMemory(ToolTest):
    """OpenBLAS asks for ever for memory that it does not get: the tool has to ask first."""

    def test_it_ends_with_a_message_or_one_line(self):
        self.save("g.npy", normal(600, 600))
        self.succeed("encode", "--codec", "atomo:bits=1", "g.npy", "whole.atomo")
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        for megabytes in (100, 200, 400, 4000):
            for codec in ("atomo:bits=1", "atomo:atoms=svd,bits=1", "sign"):
                with self.subTest(megabytes=megabytes, codec=codec):
                    done = subprocess.run([ATOMO, "encode", "--codec", codec, "--threads", "2", "g.npy", "g.atomo"],
                                          cwd=self.directory, capture_output=True, timeout=600, check=False, env=environment,
                                          preexec_fn=limit_memory_to(megabytes << 20))
                    self.assertIn(done.returncode, (0, 2) if megabytes < 4000 and codec != "sign" else (0,))
                    if done.returncode == 2:
                        self.assertIn(b"there is not enough memory", done.stderr)
                    elif codec == "atomo:bits=1":
                        self.assertEqual(self.read("g.atomo"), self.read("whole.atomo"))


class Written(ToolTest):
    def setUp(self):
        super().setUp()
        self.save("g.npy", normal(100, 50))
        self.succeed("encode", "--codec", "identity", "g.npy", "g.atomo")

    def commands(self, out):
        """Every command that writes a file, writing to `out` (with the extension it needs)."""
        return (("encode", "--codec", "identity", "g.npy", out + ".atomo"), ("decode", "g.atomo", out + ".npy"),
                ("decode", "g.atomo", out + ".npz"), ("decode", "g.atomo", out + ".safetensors"),
                ("measure", "--codec", "identity", "--plot", out + ".png", "g.npy"))

    def test_a_directory_as_output(self):
        for extension in (".atomo", ".npy", ".npz", ".safetensors", ".png"):
            os.mkdir(self.path("o" + extension))
        for command in self.commands("o"):
            self.refuse(2, "is a directory", *command)

    def test_a_missing_directory(self):
        for command in self.commands("nowhere/o"):
            self.refuse(2, ["nowhere/o", "No such file"], *command)

    def test_a_directory_that_is_closed(self):
        os.mkdir(self.path("closed"), 0o500)
        for command in self.commands("closed/o"):
            self.refuse(2, ["closed/o", "Permission denied"], *command, preexec_fn=obey_permissions)

    def test_a_file_that_is_write_protected(self):
        self.write("o.npy", b"old")
        os.chmod(self.path("o.npy"), 0o400)
        self.refuse(2, ["o.npy", "Permission denied"], "decode", "g.atomo", "o.npy", preexec_fn=obey_permissions)

    def test_a_full_disk_leaves_nothing(self):
        for command in self.commands("o")[:-1]:  # the limit would also stop Python, which draws the plot
            with self.subTest(command=command):
                self.refuse(2, ["o.", "cannot be written"], *command, preexec_fn=limit_files_to(1000))

    def test_a_full_disk_leaves_the_old_file(self):
        self.write("o.npy", b"old")
        self.refuse(2, "cannot be written", "decode", "g.atomo", "o.npy", preexec_fn=limit_files_to(1000))
        self.assertEqual(self.read("o.npy"), b"old")

    def test_a_full_device(self):
        for command in (("encode", "--codec", "identity", "g.npy", "/dev/full"),
                        ("decode", "--format", "npy", "g.atomo", "/dev/full")):
            self.refuse(2, ["/dev/full", "No space left"], *command)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    def test_a_full_standard_output(self):
        for command in (("encode", "--codec", "identity", "g.npy", "-"), ("decode", "g.atomo", "-"),
                        ("inspect", "g.atomo"), ("inspect", "--json", "g.atomo"), ("codecs",), ("--help",),
                        ("measure", "--codec", "identity", "g.npy"), ("encode", "--help"), ("--version",)):
            with self.subTest(command=command), open("/dev/full", "wb") as full:
                self.refuse(2, ["standard output", "No space left"], *command, stdout=full)

    def test_a_redirected_output_on_a_full_disk_is_taken_back(self):
        with open(self.path("o"), "wb") as out:
            done = self.run_tool("decode", "g.atomo", "-", stdout=out, preexec_fn=limit_files_to(1000))
        self.assertEqual((done.returncode, self.read("o")), (2, b""))

    def test_a_closed_pipe_and_a_closed_output(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.refuse(2, ["standard output", "Broken pipe"], "decode", "g.atomo", "-", stdout=writer)
        os.close(writer)
        self.refuse(2, "standard output", "decode", "g.atomo", "-", preexec_fn=lambda: os.close(1))

    def test_a_named_pipe_is_fed_and_stays(self):
        os.mkfifo(self.path("pipe"))
        tool = subprocess.Popen([ATOMO, "decode", "--format", "npy", "g.atomo", "pipe"], cwd=self.directory,
                                stdout=subprocess.DEVNULL)
        with open(self.path("pipe"), "rb") as pipe:
            content = pipe.read()
        self.assertEqual(tool.wait(), 0)
        self.assertEqual(content, self.read("g.npy"))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("pipe")).st_mode))

    def test_a_link_stays_a_link(self):
        os.mkdir(self.path("there"))
        self.write("there/real.npy", b"old")
        os.symlink("there/real.npy", self.path("o.npy"))
        self.succeed("decode", "g.atomo", "o.npy")
        self.assertTrue(os.path.islink(self.path("o.npy")))
        self.assertEqual(self.read("there/real.npy"), self.read("g.npy"))

    def test_permissions_of_files(self):
        self.succeed("decode", "g.atomo", "o.npy", preexec_fn=lambda: os.umask(0o027))
        self.assertEqual(os.stat(self.path("o.npy")).st_mode & 0o777, 0o640)
        os.chmod(self.path("o.npy"), 0o604)
        self.succeed("decode", "g.atomo", "o.npy")
        self.assertEqual(os.stat(self.path("o.npy")).st_mode & 0o777, 0o604)

    def test_input_and_output_may_be_one_file(self):
        self.succeed("encode", "--codec", "identity", "g.npy", "x.bin")
        self.succeed("decode", "--format", "npy", "x.bin", "x.bin")
        self.assertEqual(self.read("x.bin"), self.read("g.npy"))


class Interrupted(ToolTest):
    CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)

    def start(self, *arguments, **options):
        return subprocess.Popen([ATOMO, *arguments], cwd=self.directory, stderr=subprocess.PIPE, **options)

    def test_interrupts_while_the_input_is_read(self):
        """The output is open by then: the input only comes once the tool waits for it."""
        for name in self.CAUGHT:
            with self.subTest(signal=name):
                tool = self.start("encode", "--codec", "identity", "-", "o.atomo", stdin=subprocess.PIPE)
                tool.stdin.write(b"\x93NUMPY")
                tool.stdin.flush()
                self.wait_for_open_output(tool.pid)
                tool.send_signal(name)
                tool.communicate()
                self.assertEqual(tool.returncode, -name)
                self.assertEqual(os.listdir(self.directory), [])

    def wait_for_open_output(self, pid):
        directory = os.path.realpath(self.directory)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if any(path.startswith(directory) for path in self.open_files(pid)):
                return
            time.sleep(0.01)
        self.fail("the tool did not open its output")

    @staticmethod
    def open_files(pid):
        """The paths of the files that a process has open, without those that it closes meanwhile."""
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                yield os.readlink(f"/proc/{pid}/fd/{fd}")

    def test_interrupts_at_any_time(self):
        """Whatever is there afterwards under the output's name is whole, and nothing else is there."""
        g = normal(4_000_000)
        self.save("g.npy", g)
        self.succeed("encode", "--codec", "identity", "g.npy", "whole.atomo")
        whole = self.read("whole.atomo")
        started = time.monotonic()
        self.succeed("encode", "--codec", "identity", "g.npy", "o.atomo")
        duration = time.monotonic() - started
        os.remove(self.path("o.atomo"))
        ended_early = 0
        for i in range(24):
            tool = self.start("encode", "--codec", "identity", "g.npy", "o.atomo", stdout=subprocess.DEVNULL)
            time.sleep(duration * i / 20)
            tool.send_signal(self.CAUGHT[i % len(self.CAUGHT)])
            tool.communicate()
            ended_early += tool.returncode < 0
            left = sorted(os.listdir(self.directory))
            self.assertIn(left, (["g.npy", "whole.atomo"], ["g.npy", "o.atomo", "whole.atomo"]))
            if "o.atomo" in left:
                self.assertEqual(self.read("o.atomo"), whole)
                os.remove(self.path("o.atomo"))
        self.assertGreater(ended_early, 3)


class WithoutNamelessFiles(Interrupted):
    """The same where the file system only has files with names, played by a library that refuses O_TMPFILE."""

    SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int named_only(const char* name, const char* path, int flags, int mode) {
  if ((flags & O_TMPFILE) == O_TMPFILE) { errno = EOPNOTSUPP; return -1; }
  return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, name))(path, flags, mode);
}
#define OPEN(name)                                     \
  int name(const char* path, int flags, ...) {         \
    va_list rest;                                      \
    va_start(rest, flags);                             \
    const int mode = va_arg(rest, int);                \
    va_end(rest);                                      \
    return named_only(#name, path, flags, mode);       \
  }
OPEN(open)
OPEN(open64)
"""
    CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # nothing can be tidied up after SIGKILL

    @classmethod
    def setUpClass(cls):
        compiler = shutil.which("cc")
        if compiler is None:
            raise unittest.SkipTest("no C compiler")
        cls.shim_directory = tempfile.mkdtemp(prefix="atomo-cli-")
        cls.addClassCleanup(shutil.rmtree, cls.shim_directory, True)
        cls.shim = os.path.join(cls.shim_directory, "named.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", cls.shim, "-ldl"], check=True,
                       input=cls.SHIM.encode())

    def environment(self):
        sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        return {**os.environ, "LD_PRELOAD": self.shim, "ASAN_OPTIONS": sanitizer}

    def run_tool(self, *arguments, **options):
        return super().run_tool(*arguments, env=self.environment(), **options)

    def start(self, *arguments, **options):
        return super().start(*arguments, env=self.environment(), **options)

    def test_files_are_written_and_replaced(self):
        self.save("g.npy", normal(100))
        for _ in range(2):
            self.succeed("encode", "--codec", "identity", "g.npy", "g.atomo")
            self.succeed("decode", "g.atomo", "o.npy")
        self.assertEqual(self.read("o.npy"), self.read("g.npy"))
        self.assertEqual(sorted(os.listdir(self.directory)), ["g.atomo", "g.npy", "o.npy"])

    def test_a_full_disk_leaves_nothing(self):
        self.save("g.npy", normal(1000))
        self.refuse(2, "cannot be written", "encode", "--codec", "identity", "g.npy", "o.atomo",
                    preexec_fn=limit_files_to(1000))

    def test_the_hidden_name_is_used(self):
        tool = self.start("encode", "--codec", "identity", "-", "o.atomo", stdin=subprocess.PIPE)
        self.wait_for_open_output(tool.pid)
        self.assertEqual(os.listdir(self.directory), [f".atomo-{tool.pid}.unfinished"])
        tool.stdin.close()
        tool.wait()
        tool.stderr.close()
        self.assertEqual(os.listdir(self.directory), [])


class OnATerminal(ToolTest):
    def output_on_terminal(self, seconds, *arguments):
        """What the tool writes to a terminal as standard error while its input takes `seconds` to come."""
        mine, its = pty.openpty()
        self.save("g.npy", normal(10))
        tool = subprocess.Popen([ATOMO, *arguments], cwd=self.directory, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=its)
        os.close(its)
        time.sleep(seconds)
        tool.stdin.write(self.read("g.npy"))
        tool.stdin.close()
        self.assertEqual(tool.wait(), 0)
        tool.stdout.close()
        shown = b""
        while select.select([mine], [], [], 0.2)[0]:
            try:
                shown += os.read(mine, 4096)
            except OSError:
                break
        os.close(mine)
        return shown.decode()

    def test_progress_after_two_seconds_only(self):
        command = ("measure", "--codec", "identity", "--json", "-")
        started = time.monotonic()
        shown = self.output_on_terminal(0, *command)
        if time.monotonic() - started < 2:  # a machine under load may need longer for anything
            self.assertEqual(shown, "")
        shown = self.output_on_terminal(3, *command)
        self.assertRegex(shown, r"reading \.\.\. \d+ s")
        self.assertTrue(shown.endswith("\r\x1b[K"), "the line is not erased")

    def test_no_progress_elsewhere(self):
        self.save("g.npy", normal(10))
        tool = subprocess.Popen([ATOMO, "measure", "--codec", "identity", "-"], cwd=self.directory,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2.5)
        _, error = tool.communicate(self.read("g.npy"))
        self.assertEqual((tool.returncode, error), (0, b""))

    def test_binary_is_not_shown_on_a_terminal(self):
        self.save("g.npy", normal(10))
        mine, its = pty.openpty()
        self.refuse(2, "is a terminal", "encode", "--codec", "identity", "g.npy", "-", stdout=its)
        os.close(its)
        os.close(mine)


class FullFileSystem(ToolTest):
    """A small file system that is really full, where root may mount one."""

    def test_a_real_full_disk(self):
        os.mkdir(self.path("small"))
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", self.path("small")],
                              capture_output=True, check=False) if shutil.which("mount") else None
        if done is None or done.returncode != 0:
            self.skipTest("a file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", self.path("small")], check=False)
        self.save("g.npy", numpy.zeros(100_000, "<f4"))
        self.refuse(2, ["small/o.atomo", "No space left"], "encode", "--codec", "identity", "g.npy", "small/o.atomo")
        self.assertEqual(os.listdir(self.path("small")), [])
        with open(self.path("small/rest"), "wb") as file:
            file.write(bytes(60_000))
        self.refuse(2, ["small/p.png", "No space left"], "measure", "--codec", "identity", "--plot", "small/p.png", "g.npy")

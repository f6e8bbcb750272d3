# SPDX-License-Identifier: Apache-2.0
"""A network of one machine whose links have a given rate: a network namespace a host, joined by a bridge.

Each host's link is shaped both ways by a token bucket (`tc ... tbf`), so that bytes take the time that they would take there.
Namespaces belong to processes of this program: nothing is left of them when it ends, however it ends. Linux, with iproute2 and
the right to make namespaces.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

INSIDE = "ATOMO_SHAPED_NETWORK"
BRIDGE = "atomo0"
NETWORK = "10.77.0"  # of addresses .1, .2, ...; .254 is the bridge's
AGENT = """#!/bin/sh
# What mpirun starts a daemon on a host by, in place of ssh: HOST COMMAND...
process=$(sed -n "s/^$1 //p" '{table}')
shift
exec nsenter --net --uts --target "$process" sh -c "$*"
"""


def enter(module):
    """Runs `module` with this command line in a network namespace of its own; returns when it is there already."""
    if os.environ.get(INSIDE):
        return
    for program in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            raise SystemExit(f"{program} is missing: it is in the package {'iproute2' if program in ('ip', 'tc') else 'util-linux'}")
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    environment = {**os.environ, INSIDE: "1", "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    os.execvpe("unshare", ["unshare", *as_root, "--net", sys.executable, "-m", module, *sys.argv[1:]], environment)


def say(*words):
    """Runs a command; its words are in the error."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(words)}`: {done.stderr.strip() or done.returncode}")


class ShapedNetwork:
    """`hosts` hosts with links of `rate`, as tc reads it ("100mbit"), while it is open. `hostfile` names them, and mpirun
    finds in this process's environment how it starts daemons there."""

    def __init__(self, hosts, rate):
        self.hosts, self.rate, self.holders = hosts, rate, []
        self.folder = tempfile.TemporaryDirectory()
        self.hostfile = str(pathlib.Path(self.folder.name) / "hosts")

    def __enter__(self):
        say("ip", "link", "set", "lo", "up")
        say("ip", "link", "add", BRIDGE, "type", "bridge")
        say("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        say("ip", "link", "set", BRIDGE, "up")
        processes = [self.add_host(number) for number in range(1, self.hosts + 1)]
        folder = pathlib.Path(self.folder.name)
        (folder / "hosts").write_text("".join(f"{NETWORK}.{number} slots=1\n" for number in range(1, self.hosts + 1)))
        (folder / "table").write_text("".join(f"{NETWORK}.{number} {process}\n" for number, process in enumerate(processes, 1)))
        agent = folder / "agent"
        agent.write_text(AGENT.format(table=folder / "table"))
        agent.chmod(0o700)
        os.environ |= {
            "OMPI_MCA_plm_rsh_agent": str(agent),
            "OMPI_MCA_btl": "tcp,self",  # hosts of one machine would use its memory
            "OMPI_MCA_pml": "ob1",
            # A message whose receiver is asked first waits for the answer behind all that is queued: twice the time of 1.7 MB.
            "OMPI_MCA_btl_tcp_eager_limit": "4000000",
            "OMPI_MCA_btl_tcp_max_send_size": "1000000",
            "OMPI_MCA_btl_tcp_if_include": f"{NETWORK}.0/24",
            "OMPI_MCA_oob_tcp_if_include": f"{NETWORK}.0/24",
        }
        return self

    def add_host(self, number):
        """Returns the process that its namespace belongs to."""
        holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", f"hostname atomo-{number} && echo ready && exec cat"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # ends with this program
        self.holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise RuntimeError("no network namespace can be made; it takes root, or user namespaces")
        inside = ("nsenter", "--net", "--target", str(holder.pid))
        say("ip", "link", "add", f"host{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        say("ip", "link", "set", f"host{number}", "master", BRIDGE, "up")
        say(*inside, "ip", "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            say(*inside, "ip", "link", "set", device, "up")
        shape = ("root", "tbf", "rate", self.rate, "burst", "128kb", "latency", "40ms")
        say("tc", "qdisc", "add", "dev", f"host{number}", *shape)
        say(*inside, "tc", "qdisc", "add", "dev", "eth0", *shape)
        return holder.pid

    def __exit__(self, *_):
        for holder in self.holders:
            holder.stdin.close()
            holder.wait()
        self.folder.cleanup()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follows docs/own-codec.md literally: its C++ goes into the file that the page names, its commands are run as they stand.

usage: own_codec.py PAGE EXAMPLE INCLUDE_FOLDER TOOL

EXAMPLE is the same source as a file, and has to be the page's.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    page, example, include, tool = map(Path, sys.argv[1:])
    text = page.read_text(encoding="utf-8")
    (source,) = re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if not example.read_text(encoding="utf-8").endswith(source):
        return f"{example} does not end with the source of {page}"
    path = f"{tool.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"CPLUS_INCLUDE_PATH": str(include), "PATH": path}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mycodec.cpp").write_text(source, encoding="utf-8")

        def run(command):
            return subprocess.run(["bash", "-e", "-c", command], cwd=folder, env=environment, check=False,
                                  capture_output=True, text=True, timeout=600)

        done = run(commands)
        if done.returncode != 0:
            return f"{page}: its commands failed\n{done.stdout}{done.stderr}"
        if done.stdout.count("mycodec:levels=8") < 3 or not (Path(folder) / "decoded.npz").exists():
            return f"{page}: its commands did not do what it says\n{done.stdout}"
        # What the page says of a receiver without the plugin.
        without = run("atomo decode gradients.atomo again.npz")
        if without.returncode != 1 or "'mycodec:levels=8' is not registered here" not in without.stderr:
            return f"{page}: without the plugin: {without.returncode} {without.stderr}"
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every benchmark of the smaller size once and the table over it. usage: test_bench.py BENCH_CODECS"""
import json
import os
import subprocess
import sys
import tempfile

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table.py")


def main():
    with tempfile.TemporaryDirectory() as folder:
        raw, tidy = os.path.join(folder, "raw.json"), os.path.join(folder, "tidy.json")
        subprocess.run([sys.argv[1], "--benchmark_filter=1M_hot/.*", "--benchmark_min_time=0.001",
                        f"--benchmark_out={raw}", "--benchmark_out_format=json"], check=True,
                       stdout=subprocess.DEVNULL)
        table = subprocess.run([sys.executable, TABLE, "--tidy", tidy, raw], check=True, capture_output=True,
                               text=True).stdout
        with open(tidy, encoding="utf-8") as file:
            document = json.load(file)
    print(table)
    assert "host_name" not in document["context"], "the tidy file names the machine"
    specs = {run["name"].split("/")[1] for run in document["benchmarks"]}
    assert len(specs) >= 20, f"only {len(specs)} codecs were measured"
    for spec in specs:
        assert any(spec in line.split() for line in table.splitlines()), f"no line of the table for {spec}"
        operations = {run["name"].split("/")[2] for run in document["benchmarks"] if run["name"].split("/")[1] == spec}
        assert operations == {"encode", "decode", "decode_add"}, f"{spec}: {operations}"


if __name__ == "__main__":
    main()

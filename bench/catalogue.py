#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the codecs of the catalogue on a gradient of LeNet and writes the table of docs/catalogue.md.

usage: catalogue.py ATOMO [--draws N] [--codec SPEC]... [--write FILE] [--check-page FILE]

ATOMO is the command line tool. Of each spec: bits a parameter, NMSE, the NMSE of atomo:bits=B and of its
coordinates at as many bytes, and the speeds of one thread. --write puts the table between the page's marks, --check-page
fails unless the page has a row for each spec here.
"""
import argparse
import array
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

GRADIENT = Path(__file__).resolve().parent.parent / "tests/data/lenet_gradient.bf16"
LAYERS = {"conv1.weight": (20, 1, 5, 5), "conv1.bias": (20,), "conv2.weight": (50, 20, 5, 5), "conv2.bias": (50,),
          "fc1.weight": (500, 800), "fc1.bias": (500,), "fc2.weight": (10, 500), "fc2.bias": (10,)}
SPECS = ["drive", "drive:form=mse", "drive:rotations=2", "drive:form=unbiased",
         "eden:bits=0.22", "eden:bits=0.22,form=mse", "eden:bits=0.22,form=unbiased",
         "eden:bits=2", "eden:bits=2,form=mse", "eden:bits=2,form=unbiased", "eden:bits=4", "eden:bits=4,form=unbiased",
         "trellis:bits=0.22", "trellis:bits=0.22,form=mse", "trellis:bits=2", "trellis:bits=4,states=4096",
         "codebook:levels=quantile,bits=4", "codebook:levels=lloyd,bits=4", "codebook:levels=lloyd,bits=4,code=huffman",
         "codebook:levels=lloyd,bits=4,form=nearest", "codebook:levels=log,bits=4,code=huffman",
         "codebook:levels=cot,bits=3,code=huffman", "codebook:levels=ternary,form=nearest,code=huffman",
         "threshold:above=1,unit=rms", "threshold:above=1,unit=rms,form=unbiased", "dgc-threshold:keep=0.05",
         "dgc-threshold:keep=0.05,form=unbiased",
         "qsgd-elias:levels=1,code=gaps", "qsgd-elias:levels=4", "qsgd-elias:levels=16,norm=max",
         "qsgd-elias:levels=16,norm=max,code=huffman",
         "sketchml", "sketchml:form=unbiased", "lss:cells=0.01", "lss:cells=0.1", "lss:form=unbiased",
         "countsketch:cells=0.1,rows=1", "countsketch:cells=0.1,top=0.01"]


def write_gradient(path):
    """The gradient as a safetensors file of f32."""
    halves = array.array("H", GRADIENT.read_bytes())
    words = array.array("I", (half << 16 for half in halves)).tobytes()
    header, at = {}, 0
    for name, shape in LAYERS.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + words)


def measure(tool, spec, gradient, draws):
    done = subprocess.run([tool, "measure", "--codec", spec, "--draws", str(draws), "--threads", "1", "--json", gradient],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["codecs"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atomo")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--check-page", metavar="FILE")
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("--codec", action="append", dest="specs", metavar="SPEC", help="may be repeated")
    options = parser.parse_args()
    if options.check_page:
        page = Path(options.check_page).read_text(encoding="utf-8")
        missing = [spec for spec in SPECS if f"| `{spec}` |" not in page]
        print("\n".join(missing) or "the page has a row for each")
        return 1 if missing else 0
    lines = ["| spec | bits | NMSE | `atomo` | its coordinates | encode, decode MB/s |", "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        gradient = Path(folder, "lenet.safetensors")
        write_gradient(gradient)
        for spec in options.specs or SPECS:
            row = measure(options.atomo, spec, gradient, options.draws)
            bits = row["bits_per_parameter"]
            atoms, coordinates = (measure(options.atomo, f"atomo:bits={min(bits, 16):.4g}{key}", gradient, 2)["nmse"]
                                  for key in ("", ",atoms=coordinate"))
            lines.append(f"| `{spec}` | {bits:.2f} | {row['nmse']:.3g} | {atoms:.2g} | {coordinates:.3g} "
                         f"| {1e3 * row['encode_gbs']:.0f}, {1e3 * row['decode_gbs']:.0f} |")
    table = "\n".join(lines) + "\n"
    if options.write:
        page = Path(options.write)
        head, _, rest = page.read_text(encoding="utf-8").partition("<!-- figures -->\n")
        _, _, tail = rest.partition("<!-- /figures -->")
        page.write_text(f"{head}<!-- figures -->\n{table}<!-- /figures -->{tail}", encoding="utf-8")
    else:
        print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

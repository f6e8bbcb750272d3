# SPDX-License-Identifier: Apache-2.0
"""`atomo verify`: codecs and commands, its exit codes, its JSON, its plot."""
import json

import numpy

from support import ToolTest, normal

COPY = "cp {input} {output}"
# The last entry arrives as 0.
LOSE = "head -c -4 {input} > {output}; printf '\\000\\000\\000\\000' >> {output}"


class Verify(ToolTest):
    def test_codecs_keep_their_claims(self):
        self.save("g.npy", normal(20, 30))
        for spec in ("qsgd:bits=4", "topk:keep=0.05", "atomo:bits=1,atoms=rows", "randomk:keep=0.6"):
            with self.subTest(spec=spec):
                report = self.succeed_json("verify", "--codec", spec, "--draws", 128, "g.npy")
                self.assertTrue(report["holds"])
                self.assertEqual(report["inputs"][0]["name"], "g")
                self.assertEqual(report["inputs"][0]["shape"], [20, 30])
        self.assertIn(b"every claim holds", self.succeed("verify", "--codec", "sign", "--draws", 64))

    def test_a_claim_that_is_not_kept(self):
        done = self.run_tool("verify", "--codec", "terngrad:clip=2.5", "--claim", "unbiased", "--draws", 512, "--json")
        self.assertEqual(done.returncode, 1)
        report = json.loads(done.stdout)
        self.assertFalse(report["holds"])
        self.assertEqual({check["claim"] for check in report["checks"] if not check["holds"]}, {"unbiased"})
        self.assertIn("a claim", self.run_tool("verify", "--codec", "sign", "--claim", "contraction=0.5").stdout.decode())
        error = done.stderr.decode()
        self.assertTrue(error.startswith("atomo: terngrad:clip=2.5: ") and error.count("\n") == 1, error)

    def test_commands(self):
        self.save("g.npy", numpy.ones(80, "<f4"))
        claims = ("--claim", "unbiased", "--claim", "omega=1", "--claim", "fixed-size", "--claim", "deterministic",
                  "--only-inputs", "--draws", 64)
        report = self.succeed_json("verify", "--encode", COPY, "--decode", COPY, *claims, "g.npy")
        self.assertEqual(report["inputs"][0]["draws"], 64)
        self.assertEqual(report["inputs"][0]["bytes"], 448)  # the .npy file
        done = self.run_tool("verify", "--encode", COPY, "--decode", LOSE, *claims, "g.npy")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"bias by entry", done.stdout)
        self.assertIn(b"1 failed", done.stdout)

    def test_commands_know_the_key(self):
        self.save("g.npy", numpy.ones(4, "<f4"))
        keys = self.path("keys")
        self.succeed("verify", "--encode", f"echo {{key}} {{seed}} {{step}} {{worker}} {{tensor}} >> {keys}; {COPY}",
                     "--decode", COPY, "--claim", "deterministic", "--only-inputs", "--draws", 64, "--seed", 5, "g.npy")
        lines = [line.split() for line in self.read("keys").decode().splitlines()]
        self.assertEqual({(seed, worker, tensor) for _, seed, _, worker, tensor in lines}, {("5", "0", "0")})
        self.assertEqual(len({key for key, *_ in lines}), len({step for _, _, step, *_ in lines}))

    def test_every_outcome(self):
        """Two keys, two messages: their mean is what is sent, or is not."""
        self.save("g.npy", numpy.ones(80, "<f4"))
        self.save("0.npy", numpy.zeros(80, "<f4"))
        for other, status in ((2, 0), (2.001, 1)):
            self.save("1.npy", numpy.full(80, other, "<f4"))
            encode = f"cp {self.path('')}/{{key}}.npy {{output}}; : {{input}}"
            done = self.run_tool("verify", "--encode", encode, "--decode", COPY, "--claim", "unbiased", "--only-inputs",
                                 "--outcomes", 2, "--json", "g.npy")
            self.assertEqual(done.returncode, status, done.stdout)
            report = json.loads(done.stdout)
            self.assertEqual(report["inputs"][0]["draws"], 2)
            self.assertEqual({check["bound"] for check in report["checks"]}, {"compared", "enumerated"})

    def test_budgets(self):
        """Of messages of 448 bytes."""
        self.save("g.npy", numpy.ones(80, "<f4"))
        for claim, status in (("average-bytes=448", 0), ("average-bytes=200", 1), ("bits=20", 1)):
            done = self.run_tool("verify", "--encode", COPY, "--decode", COPY, "--claim", claim, "--only-inputs",
                                 "--draws", 64, "g.npy")
            self.assertEqual(done.returncode, status, done.stdout)

    def test_commands_that_fail(self):
        self.save("g.npy", normal(8))
        done = self.run_tool("verify", "--encode", "echo no such thing >&2; false {input} {output}", "--decode",
                             "cp {input} {output}", "--claim", "deterministic", "--only-inputs", "g.npy")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"no such thing", done.stdout)

    def test_the_same_seed_gives_the_same_report(self):
        one, two, other = (self.succeed("verify", "--codec", "terngrad", "--draws", 64, "--seed", seed, "--json")
                           for seed in (3, 3, 4))
        self.assertEqual(one, two)
        self.assertNotEqual(one, other)

    def test_plot(self):
        self.succeed("verify", "--codec", "qsgd:bits=2", "--draws", 64, "--plot", "bias.png")
        self.assertEqual(self.read("bias.png")[:8], b"\x89PNG\r\n\x1a\n")

    def test_refusals(self):
        self.save("g.npy", normal(8))
        self.save("nan.npy", numpy.full(8, numpy.nan, "<f4"))
        for wanted, arguments in (("--codec SPEC, or --encode", ()),
                                  ("--codec SPEC, or --encode", ("--codec", "sign", "--encode", "x", "--decode", "y")),
                                  ("need --encode, --decode and what they claim",
                                   ("--encode", "x {input} {output}", "--decode", "y {input} {output}")),
                                  ("{output} is missing", ("--encode", "x {input}", "--decode", "y {input} {output}",
                                                           "--claim", "unbiased")),
                                  ("accepted are unbiased", ("--codec", "sign", "--claim", "nothing")),
                                  ("accepted are unbiased", ("--codec", "sign", "--claim", "omega=x")),
                                  ("omega is a finite number", ("--codec", "sign", "--claim", "omega=-1")),
                                  ("contraction is a number", ("--codec", "sign", "--claim", "contraction=2")),
                                  ("independent workers", ("--codec", "sign", "--claim", "workers")),
                                  ("family error", ("--codec", "sign", "--family-error", "2")),
                                  ("--outcomes is for", ("--codec", "sign", "--outcomes", "2")),
                                  ("100 outcomes and 64 draws",
                                   ("--encode", COPY, "--decode", COPY, "--claim", "unbiased", "--outcomes", "100",
                                    "--draws", "64", "--only-inputs", "g.npy")),
                                  ("no tensor", ("--codec", "sign", "--only-inputs")),
                                  ("nothing was checked", ("--encode", COPY, "--decode", COPY, "--claim", "unbiased", "--only-inputs", "nan.npy")),
                                  ("an integer from 64", ("--codec", "sign", "--draws", "3")),
                                  ("unknown codec", ("--codec", "sgin")),
                                  ("keeps a memory", ("--codec", "ef+topk:keep=0.1")),
                                  (".png", ("--codec", "sign", "--plot", "x.jpg")),
                                  ("none.npy", ("--codec", "sign", "none.npy"))):
            with self.subTest(arguments=arguments):
                self.refuse(2, wanted, "verify", *arguments)

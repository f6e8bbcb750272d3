# SPDX-License-Identifier: Apache-2.0
"""Help, version, wrong usage, the list of codecs."""
import json

from support import ToolTest, normal

COMMANDS = ("codecs", "encode", "decode", "inspect", "measure", "add")


class Usage(ToolTest):
    def test_version(self):
        self.assertRegex(self.succeed("--version").decode(), r"^atomo \d+\.\d+\.\d+ \(container format \d+\.\d+\)\n$")

    def test_help_of_every_command_has_an_example_and_json(self):
        for command in COMMANDS:
            text = self.succeed(command, "--help").decode()
            self.assertIn(f"Usage: atomo {command}", text)
            self.assertIn(f"Example:\n  atomo {command}", text)
            self.assertIn("--json", text)
        for command in COMMANDS:
            self.assertIn(f"\n  {command} ", self.succeed("--help").decode())

    def test_wrong_usage_is_one_line(self):
        self.save("g.npy", normal(4))
        for wanted, arguments in (
                ("a command is needed", ()),
                ("'squash' is no command; accepted is codecs, encode", ("squash",)),
                ("--codec is required", ("encode",)),
                ("IN and OUT", ("encode", "--codec", "identity")),
                ("IN and OUT", ("encode", "--codec", "identity", "g.npy")),
                ("OUT is required", ("decode", "g.atomo")),
                ("IN is required", ("measure", "--codec", "identity")),
                ("--codec is required", ("measure", "g.npy")),
                ("--frobnicate", ("inspect", "--frobnicate", "g.atomo")),
                ("'-1' is not an integer from 0", ("encode", "--codec", "identity", "--seed", "-1", "g.npy", "o")),
                ("from 0 to 65535", ("encode", "--codec", "identity", "--worker", "65536", "g.npy", "o")),
                ("from 0 to 4294967295", ("encode", "--codec", "identity", "--step", "4294967296", "g.npy", "o")),
                ("'1.5' is not an integer", ("encode", "--codec", "identity", "--step", "1.5", "g.npy", "o")),
                ("from 1 to", ("measure", "--codec", "identity", "--draws", "0", "g.npy")),
                ("from 1 to 1024", ("encode", "--codec", "identity", "--threads", "0", "g.npy", "o")),
                ("f64", ("decode", "--dtype", "f64", "g.atomo", "o.npy")),
                ("--output is required", ("add", "g.atomo")),
                ("IN is required", ("add", "-o", "sum.atomo")),
                ("extension '.txt'", ("decode", "g.atomo", "o.txt")),
                ("extension ''", ("decode", "g.atomo", "o")),
                ("give IN before OUT", ("encode", "--codec", "identity", "g.atomo", "g.npy")),
                ("nearest is identity", ("encode", "--codec", "idnetity", "g.npy", "o")),
                ("nearest is identity", ("measure", "--codec", "idnetity", "g.npy")),
                ("a file has no past: take 'topk:keep=0.1'", ("encode", "--codec", "ef+topk:keep=0.1", "g.npy", "o")),
                ("a file has no past: take 'sign'", ("measure", "--codec", "dgc+sign", "g.npy")),
                ("ends in .png", ("measure", "--codec", "identity", "--plot", "p.svg", "g.npy")),
                ("once", ("encode", "--codec", "identity", "-", "-", "o"))):
            with self.subTest(arguments=arguments):
                self.refuse(2, wanted, *arguments, input=b"")

    def test_paths_that_cannot_be_read(self):
        self.write("folder", b"")
        for command in (("encode", "--codec", "identity", "IN", "o"), ("measure", "--codec", "identity", "IN"),
                        ("decode", "IN", "o.npy"), ("inspect", "IN")):
            for name, why in (("nowhere.npy", "No such file"), ("folder/g.npy", "Not a directory"),
                              (".", "is a directory")):
                with self.subTest(command=command, name=name):
                    self.refuse(2, [name, why], *(name if word == "IN" else word for word in command))

    def test_newlines_in_a_path_stay_in_one_line(self):
        self.refuse(2, "no?where", "inspect", "no\nwhere")

    def test_a_leading_zero_is_no_octal(self):
        self.save("g.npy", normal(4))
        self.succeed("encode", "--codec", "identity", "--seed", "010", "--step", "08", "g.npy", "g.atomo")
        key = self.succeed_json("inspect", "g.atomo")["key"]
        self.assertEqual((key["seed"], key["step"]), (10, 8))

    def test_the_key_reaches_the_container(self):
        self.save("g.npy", normal(4))
        self.succeed("encode", "--codec", "identity", "--seed", 2**64 - 1, "--step", 2**32 - 1, "--worker", 65535,
                     "g.npy", "g.atomo")
        self.assertEqual(self.succeed_json("inspect", "g.atomo")["key"],
                         {"seed": 2**64 - 1, "step": 2**32 - 1, "tensor": 0, "worker": 65535, "channel": 0})


class Codecs(ToolTest):
    def test_the_table_lists_every_codec(self):
        text = self.succeed("codecs").decode()
        for name in ("identity", "atomo", "qsgd", "terngrad", "sign", "topk", "randomk", "+blosc"):
            self.assertRegex(text, rf"(?m)^{name.replace('+', '[+]')}\s")
        self.assertIn("unbiased", text)
        for name in ("ef", "momentum", "dgc", "ef21"):
            self.assertRegex(text, rf"(?m)^{name}[+]\s")

    def test_json_has_the_traits_and_its_examples_work(self):
        self.save("g.npy", normal(40, 30))
        codecs = json.loads(self.succeed("codecs", "--json"))["codecs"]
        self.assertGreaterEqual(len(codecs), 8)
        for codec in codecs:
            self.assertLessEqual({"unbiased", "bias_bound", "omega", "contraction", "largest", "step", "smallest", "highest",
                                  "linear", "votes", "averages_over_workers",
                                  "fixed_size", "bounded", "allocates", "synchronises", "capturable", "cpu", "cuda"},
                                 set(codec["traits"]))
            self.succeed("encode", "--codec", codec["example"], "g.npy", "g.atomo")
        memories = json.loads(self.succeed("codecs", "--json"))["memories"]
        self.assertEqual([memory["name"] for memory in memories], ["ef", "momentum", "dgc", "ef21"])
        unbiased = {codec["name"]: codec["traits"]["unbiased"] for codec in codecs}
        self.assertTrue(unbiased["qsgd"] and unbiased["atomo"])
        self.assertFalse(unbiased["sign"] or unbiased["topk"])

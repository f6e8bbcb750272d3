# SPDX-License-Identifier: Apache-2.0
"""Adding containers of coordinates."""
import numpy

from support import ToolTest, normal

GRID = "atomo:atoms=coordinate,delta=0.0078125"


class Add(ToolTest):
    def encode(self, name, values, *options, spec=GRID):
        self.save("g.npy", values)
        self.succeed("encode", "--codec", spec, *options, "g.npy", name)
        self.succeed("decode", name, "back.npy")
        return numpy.load(self.path("back.npy"))

    def test_the_sum_decodes_to_the_sum(self):
        parts = [self.encode(f"{w}.atomo", normal(300, 40, seed=w), "--worker", w) for w in range(3)]
        report = self.succeed_json("add", "0.atomo", "1.atomo", "2.atomo", "-o", "sum.atomo")
        self.assertEqual((report["output"], report["messages"], report["layers"]), ("sum.atomo", 3, 1))
        self.assertEqual(report["bytes"], len(self.read("sum.atomo")))
        self.succeed("decode", "sum.atomo", "sum.npy")
        # Multiples of 2^-7 below 2^17: exact in f32 in any order.
        numpy.testing.assert_array_equal(numpy.load(self.path("sum.npy")), parts[0] + parts[1] + parts[2])

    def test_grouping_and_pipes_change_no_byte(self):
        for w in range(3):
            self.encode(f"{w}.atomo", normal(50, seed=w), "--worker", w)
        text = self.succeed("add", "0.atomo", "1.atomo", "2.atomo", "-o", "all.atomo").decode()
        self.assertRegex(text, r"^all\.atomo: the sum of 3 messages, 1 layer, \d+ bytes\n$")
        self.succeed("add", "1.atomo", "2.atomo", "-o", "two.atomo")
        piped = self.succeed("add", "0.atomo", "-", "-o", "-", input=self.read("two.atomo"))
        self.assertEqual(piped, self.read("all.atomo"))
        self.succeed("add", "0.atomo", "-o", "one.atomo")
        self.assertEqual(self.read("one.atomo"), self.read("0.atomo"))

    def test_what_does_not_add_is_refused_by_its_name(self):
        self.encode("a.atomo", normal(50))
        for wanted, values, spec in (("different grid steps", normal(50), "atomo:atoms=coordinate,delta=0.5"),
                                     ("other layers", normal(51), GRID),
                                     ("was encoded with qsgd", normal(50), "qsgd:bits=4")):
            with self.subTest(wanted):
                self.encode("b.atomo", values, spec=spec)
                self.refuse(1, ["b.atomo: refused", wanted], "add", "a.atomo", "a.atomo", "b.atomo", "-o", "s.atomo")
        self.write("b.atomo", self.read("a.atomo")[:-1])
        self.refuse(1, ["b.atomo: refused"], "add", "a.atomo", "b.atomo", "-o", "s.atomo")
        self.refuse(2, ["nowhere", "No such file"], "add", "a.atomo", "nowhere", "-o", "s.atomo")

    def test_a_non_finite_message_makes_the_sum_non_finite(self):
        self.encode("a.atomo", normal(50))
        values = normal(50)
        values[3] = numpy.nan
        self.save("g.npy", values)
        self.succeed("encode", "--codec", GRID, "g.npy", "b.atomo")
        done = self.run_tool("add", "a.atomo", "b.atomo", "-o", "s.atomo")
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"NaN", done.stderr)
        self.assertTrue(self.succeed_json("inspect", "s.atomo")["layers"][0]["non_finite"])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model of the kernels' speed on counts that a person can check: the way through machine code, the loops, the times of
a launch and of a call."""
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tools", "gpu_model"), os.path.join(ROOT, "tests", "cuda_compile")]
import instructions  # noqa: E402
import model  # noqa: E402
import paths  # noqa: E402
import predict  # noqa: E402
import report  # noqa: E402
import sass  # noqa: E402

# An early end, a jump of threads that parted, a loop of four loads of 16 bytes whose rest is taken one by one, a choice between words and bytes, a refusal.
CODE = """
\t.section\t.text.kernel,"ax",@progbits
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   ISETP.GE.U32.AND P0, PT, R0, R1, PT ;
        /*0020*/               @P0 EXIT ;
        /*0028*/                   BRA.DIV UR4, `(.L_x_4) ;
.L_x_1:
        /*0030*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0040*/                   LDG.E.128 R8, desc[UR4][R2.64+0x200] ;
        /*0050*/                   FADD R4, R4, R5 ;
        /*0060*/                   FADD R4, R4, R6 ;
        /*0070*/                   IADD3 R2, R2, 0x400, RZ ;
        /*0080*/                   ISETP.NE.AND P1, PT, R2, R3, PT ;
        /*0090*/               @P1 BRA `(.L_x_1) ;
.L_x_2:
        /*00a0*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*00b0*/                   ISETP.NE.AND P1, PT, R2, R3, PT ;
        /*00c0*/               @P1 BRA `(.L_x_2) ;
        /*00d0*/               @P2 BRA `(.L_x_3) ;
        /*00e0*/                   STG.E desc[UR4][R2.64], R4 ;
        /*00f0*/                   BRA `(.L_x_4) ;
.L_x_3:
        /*0100*/                   STG.E.U8 desc[UR4][R2.64], R4 ;
        /*0110*/                   STG.E.U8 desc[UR4][R2.64+0x1], R4 ;
        /*0120*/                   STG.E.U8 desc[UR4][R2.64+0x2], R4 ;
        /*0130*/                   STG.E.U8 desc[UR4][R2.64+0x3], R4 ;
        /*0138*/                   STG.E.U8 desc[UR4][R2.64+0x4], R4 ;
        /*0140*/                   MEMBAR.SC.GPU ;
.L_x_4:
        /*0150*/                   EXIT ;
"""
RULES = {"unit": 2048, "loops": [{"has": r"^LDG\.E\.128", "each": 128}]}


def kernel(code=CODE):
    return sass.kernels_of(code)["kernel"]


class Ways(unittest.TestCase):
    """The way of a warp through a kernel."""

    def test_loops_are_found(self):
        found = kernel()
        self.assertEqual(len(found.instructions), 24)
        self.assertEqual([len(loop.blocks) for loop in found.loops], [1, 1])

    def test_the_wider_loop_takes_all_entries_and_its_rest_none(self):
        walk = paths.Walk(kernel(), RULES)
        trips = sorted(iteration.trips for iteration in walk.iterations.values())
        self.assertEqual(trips, [0, 8])  # 2,048 entries by 256 an iteration
        # 4 before, 8 x 7, a branch, a store, a branch, the end: words, not bytes.
        self.assertEqual(walk.whole.cost.instructions, 4 + 8 * 7 + 1 + 2 + 1)
        fixed, item = walk.shares()
        self.assertEqual(fixed.instructions, 8)
        self.assertEqual(item.instructions, 7 * 8 / 2048)
        self.assertEqual(walk.whole.cost.counts["memory"], 17)
        self.assertEqual(walk.whole.cost.counts["fp32"], 16)

    def test_what_is_preferred_is_taken(self):
        walk = paths.Walk(kernel(), {**RULES, "prefer": "^MEMBAR"})
        self.assertEqual(walk.whole.cost.counts["memory"], 16 + 6)

    def test_what_is_spared_is_passed_by(self):
        walk = paths.Walk(kernel(), {**RULES, "spare": r"^STG\.E$"})
        self.assertEqual(walk.whole.cost.counts["memory"], 16 + 6)

    def test_the_hot_loop_and_its_chain(self):
        _, hot = paths.Walk(kernel(), RULES).hot_loop()
        # A load, two sums one after the other, while the address takes two steps: three in a row.
        self.assertEqual((hot.entries, hot.cost.instructions, hot.steps), (256, 7, 3))
        self.assertGreater(hot.cost.cycles, sass.Instruction(None, "LDG.E", "R1, [R2]").latency)

    def test_a_loop_that_ends_within_is_left(self):
        code = CODE.replace("@P1 BRA `(.L_x_2) ;", "@P1 EXIT ;\n        /*00c8*/                   BRA `(.L_x_2) ;")
        self.assertGreater(paths.Walk(kernel(code), RULES).whole.cost.instructions, 56)

    def test_a_call_of_the_kernels_own_code_is_a_jump(self):
        code = CODE.replace("@P1 BRA `(.L_x_2) ;", "@P1 CALL.REL.NOINC `(.L_x_3) ;\n        /*00c8*/                   BRA `(.L_x_2) ;")
        walk = paths.Walk(kernel(code), RULES)
        self.assertEqual(len(walk.kernel.calls), 0)
        self.assertGreater(walk.whole.cost.instructions, 56)

    def test_callees_are_counted(self):
        code = CODE.replace("FADD R4, R4, R6 ;", "CALL.REL.NOINC `($divide) ;") + (
            "$divide:\n        /*0160*/                   IMAD R4, R4, R5, R6 ;\n"
            "        /*0170*/                   RET.REL.NODEC R8 `(kernel) ;\n")
        self.assertEqual(paths.Walk(kernel(code), RULES).whole.cost.counts["imad"], 8)


class Table(unittest.TestCase):
    """A kernel that grows is noticed."""

    def test_rules_that_no_loop_fits_are_refused(self):
        made = instructions.row_of("k.cu", "kernel", "sm_90", kernel(), RULES)
        self.assertEqual((made.unit, made.way), (2048, 64))
        unfit = {**RULES, "loops": [{"has": r"^STG\.E\.128", "each": 128}]}
        with self.assertRaisesRegex(instructions.Unfit, "no loop of kernel for sm_90"):
            instructions.row_of("k.cu", "kernel", "sm_90", kernel(), unfit)

    def test_a_twentieth_is_let_pass_and_more_is_named(self):
        row = instructions.row_of("a.cu", "kernel", "sm_90", kernel(), RULES)
        row = row._replace(code=1000, way=1000)
        self.assertEqual(list(instructions.compare([row], [row._replace(way=1050)])), [])
        for changed in (row._replace(way=1060), row._replace(code=940), row._replace(spins=1)):
            self.assertRegex("\n".join(instructions.compare([row], [changed])), "^kernel for sm_90: (way|code|spins) ")
        self.assertRegex("\n".join(instructions.compare([row], [])), "is gone")
        self.assertRegex("\n".join(instructions.compare([], [row])), "is new")


GPU = {"name": "GPU", "arch": "sm_90", "copy": 2.0, "multiprocessors": 10, "clock": 1.0, "issue": 0.5, "gap": 1.0, "shared": 200000,
       "pipes": {kind: 1 for kind in sass.CLASSES}}


def tables(kernels=None, **columns):
    """Tables of one kernel, `k`, in which all that is not given is 0."""
    zero = dict.fromkeys(instructions.COLUMNS, 0.0)
    row = instructions.Row(**{**zero, "file": "a.cu", "kernel": "k", "arch": "sm_90", "way": 100.0, **columns})
    used = report.Row("a.cu", "k", "sm_90", 64, 0, 0, 0, 0)
    call = 1, [model.Launch("k", 40, 128, 0)]
    return model.Tables(
        counted=[row], resources=[used], kernels={"k": kernels or {}}, gpus={"gpu": GPU},
        codecs={"models": {"m": {"entries": 4_000_000, "layers": 1, "largest": 4_000_000}}, "codecs": {"c": {"bits": 8}}},
        calls={("m", "c", "encode"): call, ("m", "c", "decode_add_8"): (8, call[1])})


class Times(unittest.TestCase):
    """40 blocks of 4 warps on 10 multiprocessors at 1 GHz: 40 instructions a nanosecond, 20 of them reached."""

    def launch(self, made, adds=False):
        return model.time_launch(made, GPU, made.calls["m", "c", "encode"][1][0], made.quantities("m", "c"), adds)

    def test_bytes(self):
        timed = self.launch(tables({"bytes": "4 * entries + message"}))
        self.assertEqual((timed.bound, timed.us), ("bytes", 10.0))  # 20 MB at 2 TB/s
        self.assertEqual(self.launch(tables({"bytes": "0", "adds": "message"}), adds=True).us, 2.0)

    def test_issue_of_what_is_fixed_and_of_entries(self):
        # 160 warps of 1,000 instructions and of 25,000 entries each, 4 a thread.
        timed = self.launch(tables({}, warp=1000.0, item=4.0, unit=1024.0))
        self.assertEqual(timed.bound, "issue")
        self.assertAlmostEqual(timed.us, 160 * (1000 + 4 * 25000 / 32) / 20000)

    def test_the_busiest_unit(self):
        made = tables({}, warp=1000.0, mufu=50.0)
        GPU["pipes"]["mufu"] = 8
        try:
            timed = self.launch(made)
        finally:
            GPU["pipes"]["mufu"] = 1
        self.assertEqual(timed.bound, "unit")
        self.assertAlmostEqual(timed.us, 160 * 1000 / 40000 * 8 * 0.5)

    def test_a_chain_and_its_turns(self):
        self.assertEqual(self.launch(tables({}, alone=5000.0)).us, 5.0)
        # 64 registers a thread: 32 warps a multiprocessor hold 320 of 160: one turn; with 255, 8 warps, two turns.
        made = tables({}, alone=5000.0)
        made.resources["k", "sm_90"] = made.resources["k", "sm_90"]._replace(registers=255)
        self.assertEqual(self.launch(made).us, 10.0)
        # A first block with more to do than the others' turns, and with less.
        self.assertEqual(self.launch(tables({}, alone=5000.0, first=7000.0)).us, 7.0)
        made.counted["k", "sm_90"] = made.counted["k", "sm_90"]._replace(first=7000.0)
        self.assertEqual(self.launch(made).us, 10.0)
        # A block that goes through all items alone.
        self.assertEqual(self.launch(tables({"each": "entries / 4000"}, alone_item=2.0)).us, 2.0)

    def test_warps_without_work_are_nearly_free(self):
        busy = self.launch(tables({"warps": "80"}, warp=1000.0))
        self.assertAlmostEqual(busy.us, (80 * 1000 + 80 * model.IDLE) / 20000)

    def test_each_part_of_a_grid_does_its_own(self):
        self.assertEqual(model.parse_launch("k 40x128+16"), model.Launch("k", 40, 128, 16))
        self.assertEqual(model.parse_launch("k 40x8x128"), model.Launch("k", 40, 128, 0, 8))
        made = tables({"bytes": "message"}, warp=100.0, alone=50.0)
        one, eight = (model.time_launch(made, GPU, model.Launch("k", 40, 128, 0, parts), made.quantities("m", "c"))
                      for parts in (1, 8))
        for of in ("bytes", "issue"):
            self.assertAlmostEqual(eight.times[of], 8 * one.times[of])

    def test_a_call_has_gaps_and_messages(self):
        made = tables({"bytes": "4 * entries"})
        us, share, launches, _ = model.time_call(made, "gpu", "m", "c", "encode")
        self.assertEqual((us, launches), (9.0, 1))
        self.assertAlmostEqual(share, 10 / 9)
        us, share, launches, _ = model.time_call(made, "gpu", "m", "c", "decode_add_8")
        self.assertEqual((us, launches), (72.0, 8))
        self.assertAlmostEqual(share, (16 + 16) / 72)

    def test_what_a_table_lacks_is_named(self):
        made = tables()
        made.calls["m", "c", "encode"] = 1, [model.Launch("other", 1, 32, 0)]
        with self.assertRaisesRegex(model.Unknown, "no kernel 'other' for sm_90"):
            model.time_call(made, "gpu", "m", "c", "encode")
        with self.assertRaisesRegex(model.Unknown, "no call 'm c decode'"):
            model.time_call(made, "gpu", "m", "c", "decode")


class Checks(unittest.TestCase):
    """What predict.py --check finds beside files that are not up to date."""

    def test_rules_that_fit_one_architecture_alone_are_named(self):
        made = tables({"loops": []})
        made.counted["k", "sm_80"] = made.counted["k", "sm_90"]._replace(arch="sm_80", way=300.0)
        self.assertRegex("\n".join(predict.apart(made)), "^kernels.toml: the rules of 'k' do not fit .* 300 instructions on sm_80")
        made.counted["k", "sm_80"] = made.counted["k", "sm_80"]._replace(way=200.0)
        self.assertEqual(list(predict.apart(made)), [])


class Program(unittest.TestCase):
    """predict.py as a user calls it."""

    def run_program(self, *options):
        return subprocess.run([sys.executable, os.path.join(ROOT, "tools", "gpu_model", "predict.py"), *options],
                              capture_output=True, text=True, check=False)

    def test_answers(self):
        self.assertRegex(self.run_program("--help").stdout, "^usage: predict.py")
        self.assertRegex(self.run_program("--codec", "sign", "--model", "25M").stdout, r"\n25M +sign +\d+ +\d+% +3 ")
        self.assertRegex(self.run_program("--codec", "sign", "--launches").stdout, r"sign::write_sign +\d+ +128 ")
        answer = self.run_program("--targets", "--gpu", "h200")
        self.assertEqual(answer.returncode, 2)
        self.assertRegex(answer.stderr, "--targets does not go with --gpu")
        self.assertEqual(list(json.loads(self.run_program("--json", "--codec", "sign", "--gpu", "a100").stdout)), ["a100"])
        answer = self.run_program("--codec", "no")
        self.assertEqual(answer.returncode, 2)
        self.assertRegex(answer.stderr, "--codec is 'no'; one of sign, ")


if __name__ == "__main__":
    unittest.main()

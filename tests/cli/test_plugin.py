# SPDX-License-Identifier: Apache-2.0
"""Codecs of one's own: --plugin, what it loads, what it refuses, and messages of codecs that fail or are not there."""
import os
import unittest

import numpy
from support import ToolTest

PLUGINS = os.environ.get("ATOMO_TEST_PLUGINS", "")


def plugin(kind):
    return os.path.join(PLUGINS, f"{kind}.so")


class Plugin(ToolTest):
    def setUp(self):
        super().setUp()
        numpy.save(self.path("x.npy"), numpy.arange(12, dtype="float32").reshape(3, 4))

    def encoded(self, spec="raw", out="x.atomo"):
        self.succeed("--plugin", plugin("good"), "encode", "--codec", spec, "x.npy", out)
        return out

    def test_a_codec_is_used_by_its_name(self):
        for spec in ("raw", "raw+blosc:codec=zstd"):
            self.encoded(spec)
            self.succeed("--plugin", plugin("good"), "decode", "x.atomo", "y.npy")
            numpy.testing.assert_array_equal(numpy.load(self.path("y.npy")), numpy.load(self.path("x.npy")))
        rows = self.succeed_json("--plugin", plugin("good"), "measure", "--codec", "raw", "--draws", "2", "x.npy")
        self.assertIn("raw", str(rows))
        self.assertRegex(self.succeed("--plugin", plugin("good"), "codecs").decode(), r"(?m)^raw ")
        self.assertNotRegex(self.succeed("codecs").decode(), r"(?m)^raw ")

    def test_a_message_is_inspected_without_its_codec_and_not_decoded(self):
        self.encoded()
        self.assertEqual(self.succeed_json("inspect", "x.atomo")["layers"][0]["codec"], "raw")
        self.refuse(1, "the codec 'raw' is not registered here", "decode", "x.atomo", "y.npy")
        self.refuse(2, "unknown codec 'raw'", "encode", "--codec", "raw", "x.npy", "z.atomo")

    def test_plugins_that_do_not_fit_are_refused(self):
        for kind, why in [("other_version", "was built for atomo 9.8.7, and this is"),
                          ("no_codecs", "has no codecs: expected ATOMO_CODECS"),
                          ("fails", "could not add its codecs: not today"),
                          ("taken", "the name 'qsgd' of a codec is the library's"),
                          ("other_headers", "was built with other headers of atomo"), ("missing", "cannot be loaded")]:
            with self.subTest(kind):
                self.refuse(2, why, "--plugin", plugin(kind), "codecs")
        self.refuse(2, "a codec 'raw' is registered already", "--plugin", plugin("good"), "--plugin", plugin("good"), "codecs")
        self.refuse(2, "a file of this folder is './x.so'", "--plugin", "x.so", "codecs")
        self.refuse(2, "a command is needed behind the options", "--plugin", plugin("good"))

    def test_what_a_codec_throws_is_told(self):
        for first, command, why in [(13, "encode", "failed in encode: thirteen is not sent"),
                                    (15, "encode", "its max_bytes says 48"),
                                    (14, "decode", "failed in decode: fourteen is not read")]:
            with self.subTest(why):
                x = numpy.load(self.path("x.npy"))
                x[0, 0] = first
                numpy.save(self.path("x.npy"), x)
                if command == "encode":
                    self.refuse(2, why, "--plugin", plugin("good"), "encode", "--codec", "raw", "x.npy", "z.atomo")
                else:
                    self.encoded()
                    self.refuse(1, why, "--plugin", plugin("good"), "decode", "x.atomo", "y.npy")


if __name__ == "__main__":
    unittest.main()

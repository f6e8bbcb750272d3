# SPDX-License-Identifier: Apache-2.0
"""Formats of images that the trainer reads, and the script that fetches data sets."""

import base64
import os
import pathlib
import struct
import subprocess
import tarfile
import unittest
import zlib

import numpy

from jobs import ROOT, make_images, path, write_idx

SCRIPT = ROOT / "scripts/fetch-data.sh"
READER = os.environ.get("ATOMO_TEST_IMAGES", "")
# 16 x 16 pixels, by libjpeg at quality 50.
GREY_JPEG = ("/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeX"
             "BkeFxlZ2P/wAALCAAQABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAAAAX/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/9oACAEBAAA/AJ4D/9k=")
random = numpy.random.default_rng(3)


def folder(name):
    where = pathlib.Path(path(name))
    where.mkdir()
    return where


class Images:
    """What the trainer finds in a folder: bytes of both splits, and their labels."""

    def __init__(self, where, side=0):
        done = subprocess.run([READER, str(where), str(side)], capture_output=True)
        self.error = done.stderr.decode()
        if done.returncode != 0:
            return
        line, rest = done.stdout.split(b"\n", 1)
        *shape, self.classes, training, test = map(int, line.split())
        self.splits = []
        for count in (training, test):
            labels, rest = numpy.frombuffer(rest[:8 * count], "<i8"), rest[8 * count:]
            length = 4 * count * int(numpy.prod(shape))
            pixels, rest = numpy.frombuffer(rest[:length], "<f4").reshape(count, *shape), rest[length:]
            self.splits.append((numpy.rint(pixels * 255).astype(int), labels))
        assert not rest


def refused(where, side=0):
    images = Images(where, side)
    if not images.error:
        raise AssertionError("it was not refused")
    return images.error


def some_images(count):
    return random.integers(0, 256, (count, 3, 32, 32)).astype(numpy.uint8)


def cifar_records(images, *labels):
    return numpy.concatenate([*(column[:, None] for column in labels), images.reshape(len(images), -1)], axis=1)


def write_cifar10(where, images, labels):
    for k, part in enumerate(numpy.split(cifar_records(images, labels), 5)):
        part.tofile(where / f"data_batch_{k + 1}.bin")
    cifar_records(images, labels).tofile(where / "test_batch.bin")


def mat_element(kind, data):
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def mat_array(name, array):
    """A compressed array of bytes, or one of doubles, as MATLAB writes them; short names in small elements."""
    is_double = array.dtype == numpy.float64
    small = struct.pack("<HH", 1, len(name)) + name.encode().ljust(4, b"\0")
    parts = (mat_element(6, struct.pack("<II", 6 if is_double else 9, 0)) +
             mat_element(5, struct.pack(f"<{array.ndim}i", *array.shape)) + small +
             mat_element(9 if is_double else 2, array.tobytes(order="F")))
    packed = zlib.compress(mat_element(14, parts))
    return struct.pack("<II", 15, len(packed)) + packed


def write_mat(file, **arrays):
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    pathlib.Path(file).write_bytes(header + b"".join(mat_array(name, array) for name, array in arrays.items()))


def write_ppm(file, image):
    """Height x width x 3, or height x width."""
    kind = "P6" if image.ndim == 3 else "P5"
    pathlib.Path(file).write_bytes(f"{kind}\n# made up\n{image.shape[1]} {image.shape[0]}\n255\n".encode() + image.tobytes())


def write_png(file, image):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in image)
    head = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 2 if image.ndim == 3 else 0, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    pathlib.Path(file).write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def write_jpeg(file, _):
    file.write_bytes(base64.b64decode(GREY_JPEG))


def write_tree(where, images, labels, write, ending):
    for part in ("train", "test"):
        for k, (image, label) in enumerate(zip(images, labels)):
            place = where / part / (label if isinstance(label, str) else f"class{label:02}")
            place.mkdir(parents=True, exist_ok=True)
            write(place / f"{k:04}{ending}", image)


class FormatsTest(unittest.TestCase):
    def assert_found(self, where, images, labels, classes, side=0):
        found = Images(where, side)
        self.assertEqual(found.error, "")
        self.assertEqual(found.classes, classes)
        for pixels, targets in found.splits:
            numpy.testing.assert_array_equal(pixels, images)
            numpy.testing.assert_array_equal(targets, labels)

    def test_one_set_of_images_in_every_format(self):
        labels = numpy.repeat(numpy.arange(10, dtype=numpy.uint8), 2)
        images = some_images(20)
        cifar = folder("as-cifar10")
        write_cifar10(cifar, images, labels)
        self.assert_found(cifar, images, labels, 10)

        svhn = folder("as-svhn")
        digits = numpy.where(labels == 0, 10, labels)[:, None]
        write_mat(svhn / "train_32x32.mat", X=images.transpose(2, 3, 1, 0), y=digits.astype(numpy.float64))
        write_mat(svhn / "test_32x32.mat", X=images.transpose(2, 3, 1, 0), y=digits.astype(numpy.uint8))
        self.assert_found(svhn, images, labels, 10)

        for write, ending in ((write_ppm, ".ppm"), (write_png, ".PNG")):
            tree = folder(f"as{ending}")
            write_tree(tree, images.transpose(0, 2, 3, 1), labels, write, ending)
            self.assert_found(tree, images, labels, 10)

        grey, idx = folder("grey"), folder("grey-idx")
        write_tree(grey, images[:, 0], labels, write_ppm, ".pgm")
        for prefix in ("train", "t10k"):
            write_idx(f"{idx}/{prefix}-images-idx3-ubyte", images[:, 0], compress=False)
            write_idx(f"{idx}/{prefix}-labels-idx1-ubyte", labels, compress=True)
        self.assert_found(grey, images[:, :1], labels, 10)
        self.assert_found(idx, images[:, :1], labels, 10)

    def test_the_fine_labels_of_cifar100(self):
        where, images, fine = folder("cifar100"), some_images(40), numpy.arange(60, 100, dtype=numpy.uint8)
        (where / "cifar-100-binary").mkdir()
        for name in ("train.bin", "test.bin"):
            cifar_records(images, fine // 5, fine).tofile(where / "cifar-100-binary" / name)
        self.assert_found(where, images, fine, 100)

    def test_more_classes_than_a_byte_has(self):
        labels = numpy.arange(300)
        where = folder("many")
        write_tree(where, numpy.zeros((300, 2, 2), numpy.uint8), [f"{k:03}" for k in labels], write_ppm, ".pgm")
        self.assert_found(where, numpy.zeros((300, 1, 2, 2)), labels, 300)

    def test_images_are_resized(self):
        """Each pixel is the mean of its area of the central square; images of several sizes come to one."""
        where = folder("sizes")
        wide = random.integers(0, 256, (6, 10, 3)).astype(numpy.uint8)  # of which columns 2 to 7 count
        high = random.integers(0, 256, (9, 4, 3)).astype(numpy.uint8)  # of which rows 2 to 5 count
        for part in ("train", "val"):
            for name, image in (("a", wide), ("b", high)):
                (where / part / name).mkdir(parents=True)
                write_ppm(where / part / name / "image.ppm", image)
        # Of four pixels a new one of three covers one and a third.
        thirds = numpy.array([[3, 1, 0, 0], [0, 2, 2, 0], [0, 0, 1, 3]]) / 4
        means = numpy.stack([wide[:, 2:8].reshape(3, 2, 3, 2, 3).mean(axis=(1, 3)),
                             numpy.einsum("ai,bj,ijc->abc", thirds, thirds, high[2:6].astype(float))])
        found = Images(where, 3)
        for pixels, _ in found.splits:
            self.assertLess(numpy.abs(pixels - means.transpose(0, 3, 1, 2)).max(), 0.5 + 1e-3)
        self.assertIn("has 9 x 4 pixels, images before it 6 x 10; --image-size N makes all N x N", refused(where))

    def test_jpeg(self):
        """An image of one grey, 96, is decoded to it exactly."""
        where = folder("jpeg")
        write_tree(where, numpy.zeros((4, 1, 1)), range(4), write_jpeg, ".jpeg")
        self.assert_found(where, numpy.full((4, 1, 16, 16), 96), range(4), 4)
        first = where / "train/class00/0000.jpeg"
        first.write_bytes(first.read_bytes()[:130])
        self.assertIn(f"cannot read the image {first}: ", refused(where))

    def test_labels_and_files_that_are_wrong_are_named(self):
        images, labels = make_images(20, random)
        where = folder("labels")
        labels = (labels % 7).astype(numpy.uint8)
        labels[0] = 6
        for prefix, wrong in (("train", 6), ("t10k", 9)):
            labels[0] = wrong
            write_idx(f"{where}/{prefix}-images-idx3-ubyte", images, compress=False)
            write_idx(f"{where}/{prefix}-labels-idx1-ubyte", labels, compress=False)
        self.assertIn(f"'{where}': a test label is 9, the data have 7 classes, 0 to 6", refused(where))

        cifar = folder("cifar-label")
        write_cifar10(cifar, some_images(20), numpy.full(20, 12, numpy.uint8))
        self.assertIn("a training label is 12, the data have 10 classes, 0 to 9", refused(cifar))

        said = refused(folder("nothing"))
        for part in ("train-images-idx3-ubyte", "data_batch_1.bin", "train.bin", "train_32x32.mat", "a folder a class",
                     "fetch-data.sh"):
            self.assertIn(part, said)

        tree = folder("broken")
        write_tree(tree, numpy.zeros((4, 16, 16, 3), numpy.uint8), range(4), write_png, ".png")
        (tree / "test/other").mkdir()
        self.assertIn("the class 'other' of", refused(tree))
        (tree / "test/other").rmdir()
        first = tree / "train/class00/0000.png"
        first.write_bytes(first.read_bytes()[:60])
        self.assertIn(f"cannot read the image {first}: ", refused(tree))
        first.write_bytes(b"GIF89a")
        self.assertIn("it is no PNG, JPEG, P5 or P6", refused(tree))

        svhn = folder("broken-svhn")
        for name in ("train_32x32.mat", "test_32x32.mat"):
            write_mat(svhn / name, X=numpy.zeros((8, 8, 3, 4), numpy.uint8), y=numpy.array([[1.5], [2], [3], [4]]))
        self.assertIn("'y' has 1.5", refused(svhn))
        whole = (svhn / "test_32x32.mat").read_bytes()
        for cut in (100, len(whole) - 9):
            (svhn / "train_32x32.mat").write_bytes(whole[:cut])
            self.assertIn("is no MATLAB file of version 5, or damaged: ", refused(svhn))


def fetch(*options, **environment):
    done = subprocess.run(["bash", SCRIPT, *map(str, options)], capture_output=True, text=True,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


class FetchTest(unittest.TestCase):
    def test_without_a_network_it_says_what_to_do(self):
        to = path("fetch-nothing")
        status, _, err = fetch("cifar100", "--to", to, "--from", f"file://{to}/none")
        self.assertEqual(status, 1)
        self.assertIn(f"file://{to}/none/cifar-100-binary.tar.gz (MD5 03b5dce01913d631647c71ecec9e9cb8)", err)
        self.assertIn(f"put what is missing into {to}, and run this again", err)
        self.assertEqual(os.listdir(to), [])

    def test_what_is_not_the_published_file_is_thrown_away(self):
        home, to = folder("fetch-home"), path("fetch-wrong")
        (home / "cifar-10-binary.tar.gz").write_bytes(b"something else")
        status, out, _ = fetch("cifar10", "--to", to, "--from", f"file://{home}/")
        self.assertEqual(status, 1)
        self.assertIn("the published one is c32a1d4ab5d03f1284b67883e8d87530: it is thrown away", out)
        self.assertEqual(os.listdir(to), [])
        there = pathlib.Path(to) / "cifar-10-binary.tar.gz"
        there.write_bytes(b"put there by hand, and cut")
        status, _, err = fetch("cifar10", "--to", to)
        self.assertEqual(status, 1)
        self.assertIn("remove it and run this again", err)
        self.assertTrue(there.exists())

    def test_what_is_the_published_file_is_unpacked_for_the_trainer(self):
        """As if this archive had the published sum: md5sum is one that says so."""
        home, tools, to = folder("fetch-right"), folder("fetch-tools"), path("fetch-data")
        inside = folder("fetch-inside")
        write_cifar10(inside, some_images(20), numpy.arange(20, dtype=numpy.uint8) % 10)
        with tarfile.open(home / "cifar-10-binary.tar.gz", "w:gz") as archive:
            archive.add(inside, "cifar-10-batches-bin")
        stub = tools / "md5sum"
        stub.write_text("#!/bin/sh\necho \"c32a1d4ab5d03f1284b67883e8d87530  $1\"\n")
        stub.chmod(0o755)
        status, out, err = fetch("cifar10", "--to", to, "--from", f"file://{home}", PATH=f"{tools}:{os.environ['PATH']}")
        self.assertEqual(status, 0, err)
        self.assertIn(f"done: --data {to}", out)
        self.assertRegex(out, "cifar-10-binary.tar.gz: MD5 as published, SHA-256 [0-9a-f]{64}")
        self.assertEqual(Images(to).splits[0][1].tolist(), [k % 10 for k in range(20)])

    def test_names_and_options_that_are_wrong(self):
        self.assertIn("there is no data set 'imagenet'; there are mnist", fetch("imagenet")[2])
        self.assertIn("there is no option '--into'", fetch("mnist", "--into", "x")[2])
        self.assertIn("--to needs a value", fetch("mnist", "--to")[2])
        self.assertEqual(fetch()[0], 2)


if __name__ == "__main__":
    unittest.main()

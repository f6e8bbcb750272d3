// SPDX-License-Identifier: Apache-2.0
/// \file
/// .npz: a zip archive of .npy files, stored or deflated; "weight.npy" holds the tensor "weight".
#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string_view>

#include "tensors/tensor_io.hpp"
#include "terminal/failure.hpp"
#include "terminal/table.hpp"

namespace atomo::cli::detail {
namespace {

constexpr std::string_view kEntryEnding = ".npy";
constexpr std::uint64_t kMaxDeflateRatio = 1032;  // what deflate reaches on zeros
constexpr std::uint64_t kDeflateSlack = 4096;
constexpr zip_uint16_t kFirstDosDate =
    0x21;  // 1980-01-01, so that the same tensors give the same file

using Archive = std::unique_ptr<zip_t, decltype(&zip_discard)>;
using Source = std::unique_ptr<zip_source_t, decltype(&zip_source_free)>;
using ZipEntry = std::unique_ptr<zip_file_t, decltype(&zip_fclose)>;

/// libzip's error code and text.
struct ZipError {
  ZipError() { zip_error_init(&error); }
  ~ZipError() { zip_error_fini(&error); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
  zip_error_t error{};
};

Archive open_archive(const Buffer& file, const std::string& label) {
  ZipError zip;
  zip_source_t* source = zip_source_buffer_create(file.data.get(), file.bytes, 0, &zip.error);
  zip_t* archive =
      source == nullptr ? nullptr : zip_open_from_source(source, ZIP_RDONLY, &zip.error);
  if (archive == nullptr) {
    if (source != nullptr) {
      zip_source_free(source);
    }
    throw InputError(
        fmt::format("{}: not a zip archive, or truncated ({}); accepted is what numpy.savez writes",
                    label, zip_error_strerror(&zip.error)));
  }
  return {archive, &zip_discard};
}

/// Checks what the archive says of an entry before anything is allocated for it.
void check_entry(const zip_stat_t& entry, const std::string& label,
                 std::uint64_t& compressed_left) {
  constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                                   ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((entry.valid & kNeeded) != kNeeded) {
    throw InputError(fmt::format("{}: damaged zip directory", label));
  }
  if (!std::string_view(entry.name).ends_with(kEntryEnding)) {
    throw InputError(
        fmt::format("{}: is not an array; every entry of a .npz must end in .npy", label));
  }
  if (entry.encryption_method != ZIP_EM_NONE) {
    throw InputError(fmt::format("{}: is encrypted; plain entries are accepted", label));
  }
  if (entry.comp_method != ZIP_CM_STORE && entry.comp_method != ZIP_CM_DEFLATE) {
    throw InputError(fmt::format(
        "{}: compression method {} is not supported; accepted are stored (0) and deflated (8)",
        label, entry.comp_method));
  }
  // Entries cannot hold more than the file together, which also stops archives whose entries
  // overlap.
  const bool fits = entry.comp_size <= compressed_left;
  if (!fits || entry.size / kMaxDeflateRatio > entry.comp_size + kDeflateSlack) {
    throw InputError(fmt::format("{}: damaged: {} compressed bytes cannot hold the {} it claims",
                                 label, entry.comp_size, entry.size));
  }
  compressed_left -= entry.comp_size;
}

Buffer read_entry(zip_t* archive, zip_uint64_t index, const zip_stat_t& stat,
                  const std::string& label) {
  const ZipEntry entry(zip_fopen_index(archive, index, 0), &zip_fclose);
  if (!entry) {
    throw InputError(fmt::format("{}: damaged: {}", label, zip_strerror(archive)));
  }
  // The byte too many makes libzip reach the end, where it compares the checksum.
  Buffer out(stat.size + 1);
  std::uint64_t got = 0;
  for (;;) {
    const zip_int64_t n = zip_fread(entry.get(), out.data.get() + got, out.bytes - got);
    if (n < 0) {
      throw InputError(fmt::format("{}: damaged: {}", label, zip_file_strerror(entry.get())));
    }
    got += static_cast<std::uint64_t>(n);
    if (n == 0 || got == out.bytes) {
      break;
    }
  }
  if (got != stat.size) {
    throw InputError(
        fmt::format("{}: damaged: {} bytes where the directory says {}", label, got, stat.size));
  }
  out.bytes = stat.size;
  return out;
}

[[noreturn]] void fail_writing(const char* why) {
  throw InputError(fmt::format("the .npz archive could not be made: {}", why));
}

/// libzip takes names up to the first NUL, and of the others those in UTF-8 without control
/// characters beside letters that are not ASCII.
[[noreturn]] void refuse_name(const std::string& name) {
  throw InputError(
      fmt::format("tensor '{}': the entries of a .npz cannot have that name; write .safetensors",
                  printable(name)));
}

void add_entry(zip_t* archive, const Tensor& tensor, const Buffer& npy) {
  if (tensor.name.find('\0') != std::string::npos) {
    refuse_name(tensor.name);
  }
  zip_source_t* content = zip_source_buffer(archive, npy.data.get(), npy.bytes, 0);
  if (content == nullptr) {
    fail_writing(zip_strerror(archive));
  }
  const std::string name = tensor.name + std::string(kEntryEnding);
  const zip_int64_t index = zip_file_add(archive, name.c_str(), content, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(content);
    if (zip_error_code_zip(zip_get_error(archive)) == ZIP_ER_INVAL) {
      refuse_name(tensor.name);
    }
    fail_writing(
        fmt::format("tensor '{}': {}", printable(tensor.name), zip_strerror(archive)).c_str());
  }
  const auto entry = static_cast<zip_uint64_t>(index);
  if (zip_set_file_compression(archive, entry, ZIP_CM_STORE, 0) != 0 ||
      zip_file_set_dostime(archive, entry, 0, kFirstDosDate, 0) != 0) {
    fail_writing(zip_strerror(archive));
  }
}

Buffer npy_of(const Tensor& tensor) {
  const std::string header = npy_header(tensor);
  Buffer npy(header.size() + tensor.bytes());
  std::copy_n(reinterpret_cast<const std::byte*>(header.data()), header.size(), npy.data.get());
  std::copy_n(tensor.data.get(), tensor.bytes(), npy.data.get() + header.size());
  return npy;
}

Buffer drain(zip_source_t* source) {
  if (zip_source_open(source) != 0 || zip_source_seek(source, 0, SEEK_END) != 0) {
    fail_writing(zip_error_strerror(zip_source_error(source)));
  }
  const zip_int64_t bytes = zip_source_tell(source);
  if (bytes < 0 || zip_source_seek(source, 0, SEEK_SET) != 0) {
    fail_writing(zip_error_strerror(zip_source_error(source)));
  }
  Buffer out(static_cast<std::size_t>(bytes));
  for (std::uint64_t got = 0; got < out.bytes;) {
    const zip_int64_t n = zip_source_read(source, out.data.get() + got, out.bytes - got);
    if (n <= 0) {
      fail_writing(zip_error_strerror(zip_source_error(source)));
    }
    got += static_cast<std::uint64_t>(n);
  }
  zip_source_close(source);
  return out;
}

}  // namespace

std::vector<Tensor> read_npz(const Buffer& file, const std::string& label) {
  const Archive archive = open_archive(file, label);
  const zip_int64_t entries = zip_get_num_entries(archive.get(), 0);
  std::vector<Tensor> tensors;
  std::set<std::string> names;
  std::uint64_t compressed_left = file.bytes;
  for (zip_int64_t i = 0; i < entries; ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    zip_stat_t stat;
    zip_stat_init(&stat);
    if (zip_stat_index(archive.get(), index, 0, &stat) != 0) {
      throw InputError(
          fmt::format("{}: damaged zip directory: {}", label, zip_strerror(archive.get())));
    }
    const std::string entry_label =
        fmt::format("{}: entry '{}'", label, stat.name == nullptr ? "" : stat.name);
    check_entry(stat, entry_label, compressed_left);
    std::string name = stat.name;
    name.resize(name.size() - kEntryEnding.size());
    if (!names.insert(name).second) {
      throw InputError(fmt::format("{}: is there twice; names must differ", entry_label));
    }
    tensors.push_back(
        read_npy(read_entry(archive.get(), index, stat, entry_label), entry_label, name));
  }
  return tensors;
}

FileParts write_npz(const std::vector<Tensor>& tensors) {
  ZipError zip;
  const Source source(zip_source_buffer_create(nullptr, 0, 0, &zip.error), &zip_source_free);
  if (!source) {
    fail_writing(zip_error_strerror(&zip.error));
  }
  Archive archive(zip_open_from_source(source.get(), ZIP_TRUNCATE, &zip.error), &zip_discard);
  if (!archive) {
    fail_writing(zip_error_strerror(&zip.error));
  }
  zip_source_keep(source.get());  // the archive takes the hold it was given, this one is ours
  std::vector<Buffer> contents;
  for (const Tensor& t : tensors) {
    contents.push_back(npy_of(t));
    add_entry(archive.get(), t, contents.back());
  }
  if (zip_close(archive.get()) != 0) {
    fail_writing(zip_strerror(archive.get()));
  }
  (void)archive.release();
  FileParts file;
  file.owned.push_back(drain(source.get()));
  file.parts = {file.owned[0].view()};
  return file;
}

}  // namespace atomo::cli::detail

// SPDX-License-Identifier: Apache-2.0
// Names of kernels from the program's own symbol table: most kernels have internal linkage, which
// dladdr does not see.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "settings.hpp"

namespace hostexec {

namespace {

std::vector<char> read_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// How far the program was moved when it was loaded.
std::uintptr_t load_offset() {
  std::uintptr_t offset = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        *static_cast<std::uintptr_t*>(to) = info->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &offset);
  return offset;
}

// The mangled name of the function that begins at `address`, or null.
const char* symbol_at(std::uintptr_t address) {
  static const std::vector<char> program = read_program();
  const char* const base = program.data();
  Elf64_Ehdr header;
  if (program.size() < sizeof header) return nullptr;
  std::memcpy(&header, base, sizeof header);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), base + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& table : sections) {
    if (table.sh_type != SHT_SYMTAB) continue;
    for (std::size_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, base + table.sh_offset + at, sizeof symbol);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value == address)
        return base + sections[table.sh_link].sh_offset + symbol.st_name;
    }
  }
  return nullptr;
}

// Cuts the parameters off: the last parenthesis that opens at the end's level.
std::string without_parameters(std::string name) {
  if (name.empty() || name.back() != ')') return name;
  int depth = 0;
  for (std::size_t i = name.size(); i-- != 0;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) return name.substr(0, i);
  }
  return name;
}

}  // namespace

const char* kernel_name(const void* kernel) {
  static std::string name;
  const char* const mangled = symbol_at(reinterpret_cast<std::uintptr_t>(kernel) - load_offset());
  if (mangled == nullptr) {
    char text[32];
    std::snprintf(text, sizeof text, "at %p", kernel);
    name = text;
    return name.c_str();
  }
  int status = 0;
  char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  name = without_parameters(status == 0 ? demangled : mangled);
  std::free(demangled);
  // A template's name comes with its result.
  if (name.starts_with("void ")) name.erase(0, 5);
  return name.c_str();
}

}  // namespace hostexec

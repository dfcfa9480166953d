// FNV-1a with 64 bits (Fowler, Noll, Vo): a fixed hash, equal on every machine
// and in every release. Initial weights and config hashes depend on its values.
//
// No protection against chosen collisions.
#pragma once

#include <cstdint>
#include <string_view>

namespace brigade {

constexpr uint64_t fnv1a_64(std::string_view bytes) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char byte : bytes)
    hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ULL;
  return hash;
}

}  // namespace brigade

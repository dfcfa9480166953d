// Fixed hashes, equal on every machine and in every release. Initial weights,
// the order of data and config hashes depend on their values.
//
// No protection against chosen collisions.
#pragma once

#include <cstdint>
#include <string_view>

namespace brigade {

// FNV-1a with 64 bits (Fowler, Noll, Vo).
constexpr uint64_t fnv1a_64(std::string_view bytes) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char byte : bytes)
    hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ULL;
  return hash;
}

// Mixes 64 bits (the finaliser of splitmix64: Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014).
constexpr uint64_t mix_bits(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace brigade

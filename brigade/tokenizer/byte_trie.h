// A set of byte strings with a value each, searched for all that a text begins
// with.
//
// Nodes are numbered breadth first, so the children of a node are adjacent, and
// a child is found by one memchr() among their labels. A node
// takes 9 bytes: its first child, its value, its label.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace brigade {

// Immutable once built, thread-safe.
class ByteTrie {
 public:
  using Entry = std::pair<std::string_view, int32_t>;

  // Keys must differ and have less than 4 GB together, values must not be
  // negative. An empty key is never found.
  explicit ByteTrie(std::vector<Entry> entries = {});

  // Calls found(length, value) for each key that `text` begins with, the
  // shortest first.
  template <typename Found>
  void for_each_prefix(std::string_view text, Found&& found) const {
    uint32_t node = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      const uint32_t begin = first_child_[node];
      const uint32_t count = first_child_[node + 1] - begin;
      if (count == 0)
        return;
      const char* const labels = labels_.data() + begin;
      const void* const child = std::memchr(labels, text[at], count);
      if (!child)
        return;
      node = begin +
             static_cast<uint32_t>(static_cast<const char*>(child) - labels);
      if (values_[node] >= 0)
        found(at + 1, values_[node]);
    }
  }

 private:
  // Node i has label i, value i (-1: no key ends here) and the children
  // [first_child_[i], first_child_[i + 1]).
  std::vector<char> labels_;
  std::vector<int32_t> values_;
  std::vector<uint32_t> first_child_;
};

}  // namespace brigade

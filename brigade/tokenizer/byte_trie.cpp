#include "brigade/tokenizer/byte_trie.h"

#include <algorithm>

#include "brigade/base/check.h"

namespace brigade {
namespace {

// A node that is to be built: the sorted entries below it, and its depth.
struct Subtree {
  size_t begin = 0;
  size_t end = 0;
  size_t depth = 0;
};

}  // namespace

ByteTrie::ByteTrie(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end());
  std::vector<Subtree> subtrees = {{.begin = 0, .end = entries.size()}};
  const auto add_node = [&](char label, const Subtree& subtree) {
    BRIGADE_ASSERT(labels_.size() < UINT32_MAX, "{} nodes", labels_.size());
    labels_.push_back(label);
    const Entry& first = entries[subtree.begin];
    values_.push_back(first.first.size() == subtree.depth ? first.second : -1);
    subtrees.push_back(subtree);
  };
  labels_.push_back('\0');  // of the root, which has none
  values_.push_back(-1);
  for (size_t node = 0; node < subtrees.size(); ++node) {
    first_child_.push_back(static_cast<uint32_t>(labels_.size()));
    const Subtree subtree = subtrees[node];
    size_t begin = subtree.begin;
    while (begin < subtree.end && entries[begin].first.size() == subtree.depth)
      ++begin;
    while (begin < subtree.end) {
      const char label = entries[begin].first[subtree.depth];
      size_t end = begin;
      while (end < subtree.end && entries[end].first[subtree.depth] == label)
        ++end;
      add_node(label, {.begin = begin, .end = end, .depth = subtree.depth + 1});
      begin = end;
    }
  }
  first_child_.push_back(static_cast<uint32_t>(labels_.size()));
}

}  // namespace brigade

#include "brigade/tokenizer/json_parts.h"

#include <fmt/format.h>

#include "brigade/base/utf8.h"

namespace brigade {

void refuse(const JsonNode& node, std::string_view what) {
  node.fail(fmt::format(
      "{} is not supported; docs/tokenizers.md lists the parts that are",
      what));
}

void require_depth(const JsonNode& node, int depth) {
  constexpr int kMaxDepth = 16;
  if (depth > kMaxDepth)
    node.fail(fmt::format("sequences nest deeper than {}", kMaxDepth));
}

const std::string& character(const JsonNode& node) {
  const std::string& text = node.string();
  if (text.empty() || utf8_length(text[0]) != text.size())
    node.fail(fmt::format("expected one character, found \"{}\"", text));
  return text;
}

const std::string& type_of(const JsonNode& node) {
  return node.at("type").string();
}

}  // namespace brigade

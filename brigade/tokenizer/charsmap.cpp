#include "brigade/tokenizer/charsmap.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/base64.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

// A unit of the double array; the root is unit 0. The child of a node for a
// byte is the unit at (the node's index ^ its offset ^ the byte), if that has
// the byte as its label. A leaf's value is the unit at (index ^ offset).
constexpr uint32_t kIsValue = uint32_t{1} << 31;

uint32_t unit_label(uint32_t unit) {
  return unit & (kIsValue | 0xFF);
}
bool unit_has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t unit_offset(uint32_t unit) {
  return unit >> 10 << ((unit & (uint32_t{1} << 9)) >> 6);
}
uint32_t unit_value(uint32_t unit) {
  return unit & ~kIsValue;
}

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i)
    number |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i]))
              << (8 * i);
  return number;
}

}  // namespace

Charsmap::Charsmap(std::string_view blob, const JsonNode& place) {
  const size_t size = blob.size() < 4 ? 0 : little_endian(blob, 0);
  if (size == 0 || size % 4 != 0 || size > blob.size() - 4)
    place.fail(fmt::format(
        "the character map has {} bytes and says that {} of them, a positive "
        "multiple of 4, are its trie",
        blob.size(),
        size));
  units_.resize(size / 4);
  for (size_t i = 0; i < units_.size(); ++i)
    units_[i] = little_endian(blob, 4 + 4 * i);
  replacements_ = blob.substr(4 + size);
  if (valid_utf8_prefix(replacements_) != replacements_.size())
    place.fail("the replacements of the character map are not UTF-8");
  // Every index that find() can reach: children differ in the last byte. No
  // label leads to a value, but the search begins at the root whatever it is.
  for (size_t i = 0; i < units_.size(); ++i) {
    if (i > 0 && (units_[i] & kIsValue))
      continue;
    const size_t first = i ^ unit_offset(units_[i]);
    const bool in_range = (first | 0xFF) < units_.size();
    const uint32_t begin =
        in_range && unit_has_leaf(units_[i]) ? unit_value(units_[first]) : 0;
    if (!in_range || begin > replacements_.size() ||
        (begin < replacements_.size() &&
         is_utf8_continuation(replacements_[begin])))
      place.fail(fmt::format(
          "unit {} of the character map's trie points outside of it", i));
  }
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  size_t at = unit_offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0)
      break;
    at ^= byte;
    const uint32_t unit = units_[at];
    if (unit_label(unit) != byte)
      break;
    at ^= unit_offset(unit);
    if (unit_has_leaf(unit)) {
      const std::string_view rest =
          std::string_view(replacements_).substr(unit_value(units_[at]));
      return rest.substr(0, rest.find('\0'));
    }
  }
  return std::nullopt;
}

namespace {

Charsmap read_charsmap(const JsonNode& node) {
  const JsonNode place = node.at("precompiled_charsmap");
  const auto blob = decode_base64(place.string());
  if (!blob)
    place.fail("expected base64");
  return {*blob, place};
}

}  // namespace

// A short grapheme cluster is looked up whole, then each of its characters.
Normalizer make_charsmap_normalizer(const JsonNode& node) {
  const std::string where =
      fmt::format("{}: at {}", node.file(), node.pointer());
  const auto map = std::make_shared<const Charsmap>(read_charsmap(node));
  return [where, map](NormalizedText& text, RegexScratch&) {
    constexpr size_t kMaxClusterBytes = 5;
    const std::string_view in = text.text;
    std::string out;
    out.reserve(in.size());
    const auto replace = [&](std::string_view part) {
      const auto replacement = map->find(part);
      out += replacement.value_or("");
      return replacement.has_value();
    };
    for (size_t at = 0; at < in.size();) {
      const size_t end = grapheme_end(in, at);
      const bool replaced =
          end - at <= kMaxClusterBytes && replace(in.substr(at, end - at));
      for (; !replaced && at < end; at += utf8_length(in[at])) {
        const std::string_view c = in.substr(at, utf8_length(in[at]));
        if (!replace(c))
          out += c;
      }
      at = end;
      if (out.size() > text.max_bytes)
        throw DataError(fmt::format(
            "[tokenizer] {}: replacing makes the text longer than {} bytes",
            where,
            text.max_bytes));
    }
    text.text = std::move(out);
  };
}

}  // namespace brigade

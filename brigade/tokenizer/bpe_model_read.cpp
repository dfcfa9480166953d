// Reading the "model" of a tokenizer.json; every complaint has its JSON path.
#include <algorithm>

#include "brigade/tokenizer/bpe_model.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

constexpr size_t kCodePointPages = 0x110000 >> 8;
// Keeps ids far from overflow; the largest known vocabulary has 262,144.
constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

size_t count_merges(const JsonNode& node) {
  return node.at("merges").size();
}

void refuse_affix(const JsonNode& node, const char* key) {
  const auto affix = node.find(key);
  if (affix && !affix->string().empty())
    refuse(*affix, fmt::format("the {} \"{}\"", key, affix->string()));
}

}  // namespace

BpeModel::BpeModel(const JsonNode& node)
    : file_(node.file()), merges_(count_merges(node)) {
  if (const auto dropout = node.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0)
      refuse(*dropout, "dropout");
  }
  refuse_affix(node, "continuing_subword_prefix");
  refuse_affix(node, "end_of_word_suffix");
  fuse_unk_ = node.boolean_at("fuse_unk", false);
  byte_fallback_ = node.boolean_at("byte_fallback", false);
  ignore_merges_ = node.boolean_at("ignore_merges", false);
  if (const auto unk = node.find("unk_token"))
    unk_token_ = unk->string();
  read_vocabulary(node.at("vocab"));
  read_merges(node.at("merges"));
  index_characters();
}

void BpeModel::read_vocabulary(const JsonNode& node) {
  node.require_object();
  const auto& vocabulary = node.value();
  ids_.reserve(vocabulary.size());
  texts_.reserve(vocabulary.size());
  for (auto it = vocabulary.begin(); it != vocabulary.end(); ++it) {
    if (!it->is_number_unsigned() || it->get<uint64_t>() > kMaxId)
      node.fail_at(
          it.key(),
          fmt::format(
              "expected an id from 0 to {}, found {}",
              kMaxId,
              it->is_primitive() ? it->dump() : it->type_name()));
    const auto id = static_cast<int32_t>(it->get<uint64_t>());
    const auto [entry, inserted] = ids_.emplace(it.key(), id);
    const auto [other, unique] = texts_.emplace(id, &entry->first);
    if (!unique)
      node.fail_at(
          it.key(),
          fmt::format("id {} also belongs to \"{}\"", id, *other->second));
    max_id_ = std::max(max_id_, id);
    max_token_bytes_ = std::max(max_token_bytes_, it.key().size());
  }
}

int32_t BpeModel::require_token(
    const JsonNode& merges,
    size_t index,
    std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end())
    merges.fail_at(
        std::to_string(index),
        fmt::format("the token \"{}\" is not in /model/vocab", text));
  return found->second;
}

// Which space of "left right" stands between the tokens. Tokens may hold spaces
// themselves; then the line counts only if it can be read in one way.
size_t BpeModel::separator(std::string_view line) const {
  const size_t first = line.find(' ');
  if (first == line.rfind(' '))
    return first;
  size_t only = std::string_view::npos;
  std::string merged;
  for (size_t at = first; at != std::string_view::npos;
       at = line.find(' ', at + 1)) {
    merged.assign(line.substr(0, at)).append(line.substr(at + 1));
    if (!ids_.contains(line.substr(0, at)) ||
        !ids_.contains(line.substr(at + 1)) || !ids_.contains(merged))
      continue;
    if (only != std::string_view::npos)
      return std::string_view::npos;
    only = at;
  }
  return only;
}

void BpeModel::read_merges(const JsonNode& node) {
  uint32_t rank = 0;
  std::string merged;
  for (size_t i = 0; i < node.size(); ++i) {
    const auto& entry = node.value()[i];
    std::string_view left;
    std::string_view right;
    if (entry.is_string()) {
      const std::string_view line = entry.get_ref<const std::string&>();
      if (line.starts_with("#version"))
        continue;
      const size_t space = separator(line);
      if (space == std::string_view::npos)
        node.fail_at(
            std::to_string(i),
            fmt::format(
                "expected two tokens and one space, found \"{}\"", line));
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (
        entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
        entry[1].is_string()) {
      left = entry[0].get_ref<const std::string&>();
      right = entry[1].get_ref<const std::string&>();
    } else {
      node.fail_at(
          std::to_string(i),
          "expected \"left right\" or [\"left\", \"right\"]");
    }
    if (left.empty() || right.empty())
      node.fail_at(std::to_string(i), "a token of the merge is empty");
    merged.assign(left).append(right);
    const int32_t left_id = require_token(node, i, left);
    const int32_t right_id = require_token(node, i, right);
    const int32_t id = require_token(node, i, merged);
    merges_.set(left_id, right_id, {.rank = rank++, .id = id});
    boundaries_.add_merge(left, right);
  }
  merge_count_ = rank;
}

void BpeModel::index_characters() {
  page_of_.assign(kCodePointPages, 0);
  pages_.assign(1, {});
  for (const auto& [text, id] : ids_) {
    if (text.empty() || utf8_length(text[0]) != text.size())
      continue;
    const char32_t c = utf8_code_point(text, 0);
    uint16_t& page = page_of_[c >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(pages_.size());
      pages_.emplace_back();
    }
    pages_[page][c & 0xFF] = {
        .id = id,
        .left_class = boundaries_.left_class(c),
        .right_class = boundaries_.right_class(c)};
  }
  all_bytes_ = byte_fallback_;
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = token_id(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    all_bytes_ = all_bytes_ && byte_ids_[byte] >= 0;
  }
  if (unk_token_)
    unk_id_ = token_id(*unk_token_).value_or(-1);
  // Where all bytes have tokens, an unknown character is tokens that begin
  // with '<' and end with '>'.
  unknown_ = {
      .id = -1,
      .left_class = boundaries_.left_class('>'),
      .right_class = boundaries_.right_class('<')};
}

}  // namespace brigade

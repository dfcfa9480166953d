#include "brigade/data/bpe_model.h"

#include <utility>

#include "brigade/base/error.h"
#include "brigade/data/tokenizer_byte_alphabet.h"
#include "brigade/data/tokenizer_utf8.h"

namespace brigade {
namespace {

// Shorter words are merged whole: looking for cuts costs more than it saves.
constexpr size_t kMinCutBytes = 32;
constexpr size_t kCodePointPages = 0x110000 >> 8;
// Keeps ids far from overflow; the largest known vocabulary has 262,144.
constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

size_t count_merges(const JsonNode& node) {
  return node.at("merges").size();
}

void refuse_affix(const JsonNode& node, const char* key) {
  const auto affix = node.find(key);
  if (affix && !affix->string().empty())
    affix->refuse(fmt::format("a {}", key));
}

}  // namespace

BpeModel::BpeModel(const JsonNode& node)
    : file_(node.file()), merges_(count_merges(node)) {
  if (const auto dropout = node.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0)
      dropout->refuse("dropout");
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

std::optional<int32_t> BpeModel::token_id(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt
                             : std::optional<int32_t>(found->second);
}

const std::string* BpeModel::token_text(int32_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? nullptr : found->second;
}

void BpeModel::tokenize(
    const Piece& word,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  using Kind = BpeWordCache::Kind;
  const Kind kind = word.byte_level ? Kind::kBytes : Kind::kText;
  const bool cached = word.text.size() <= BpeWordCache::kMaxWordBytes;
  if (cached && scratch.cache.find(kind, word.text, ids))
    return;
  const size_t begin = ids.size();
  if (word.byte_level)
    tokenize_text(ByteAlphabet::encode(word.text), scratch, ids);
  else
    tokenize_text(word.text, scratch, ids);
  if (cached)
    scratch.cache.insert(
        kind, word.text, std::span<const int32_t>(ids).subspan(begin));
}

// Whether two adjacent characters can be tokenized apart. Beyond merges, an
// unknown token may wait for the character that follows it (and fuse with it),
// and a character without any token disappears, so that its neighbours meet.
bool BpeModel::may_cut(const Character& left, const Character& right) const {
  if ((left.id < 0 || right.id < 0) && !all_bytes_)
    return false;
  return boundaries_.is_safe(left.left_class, right.right_class);
}

void BpeModel::tokenize_text(
    std::string_view text,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  if (ignore_merges_ && text.size() <= max_token_bytes_) {
    if (const auto id = token_id(text)) {
      ids.push_back(*id);
      return;
    }
  }
  if (text.size() < kMinCutBytes) {
    merge_word(text, scratch, ids);
    return;
  }
  size_t begin = 0;
  const Character* previous = nullptr;
  for (size_t at = 0; at < text.size();) {
    const Character& current = character(utf8_code_point(text, at));
    if (previous && may_cut(*previous, current)) {
      tokenize_part(text.substr(begin, at - begin), scratch, ids);
      begin = at;
    }
    previous = &current;
    at += utf8_length(text[at]);
  }
  tokenize_part(text.substr(begin), scratch, ids);
}

void BpeModel::tokenize_part(
    std::string_view text,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  using Kind = BpeWordCache::Kind;
  if (text.size() > BpeWordCache::kMaxWordBytes) {
    merge_word(text, scratch, ids);
    return;
  }
  if (scratch.cache.find(Kind::kPart, text, ids))
    return;
  const size_t begin = ids.size();
  merge_word(text, scratch, ids);
  scratch.cache.insert(
      Kind::kPart, text, std::span<const int32_t>(ids).subspan(begin));
}

void BpeModel::merge_word(
    std::string_view text,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  if (text.size() > INT32_MAX)
    throw DataError(fmt::format(
        "[tokenizer] {}: a word of {} bytes is too long; cut the text into "
        "documents of less than 2 GB",
        file_,
        text.size()));
  auto& tokens = scratch.tokens;
  tokens.clear();
  bool unk_waits = false;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text[at]);
    const Character& current = character(utf8_code_point(text, at));
    if (current.id >= 0) {
      if (std::exchange(unk_waits, false))
        tokens.push_back(unk_id_);
      tokens.push_back(current.id);
    } else {
      bool spelled = byte_fallback_;
      for (size_t i = 0; i < length; ++i)
        spelled = spelled && byte_ids_[static_cast<uint8_t>(text[at + i])] >= 0;
      if (spelled) {
        // An unknown token that waits goes on waiting: it will stand behind
        // these bytes, as in Hugging Face's engine.
        for (size_t i = 0; i < length; ++i)
          tokens.push_back(byte_ids_[static_cast<uint8_t>(text[at + i])]);
      } else if (unk_token_) {
        if (unk_id_ < 0)
          throw DataError(fmt::format(
              "[tokenizer] {}: at /model/unk_token: \"{}\" is not in "
              "/model/vocab, and the character U+{:04X} needs it",
              file_,
              *unk_token_,
              static_cast<uint32_t>(utf8_code_point(text, at))));
        if (unk_waits && !fuse_unk_)
          tokens.push_back(unk_id_);
        unk_waits = true;
      }
      // Without an unknown token the character disappears.
    }
    at += length;
  }
  if (unk_waits)
    tokens.push_back(unk_id_);
  merge_tokens(merges_, tokens, scratch.merge);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
}

}  // namespace brigade

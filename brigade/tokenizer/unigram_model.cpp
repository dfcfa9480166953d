// The "model" of type Unigram: every token has a score, the logarithm of its
// probability, and a word is cut so that the sum of the scores is highest.
// Source: Kudo, "Subword Regularization", 2018.
//
// The best path to each position is found from left to right, over a trie of
// all tokens: time is the text's length times at most the longest token's.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/byte_trie.h"
#include "brigade/tokenizer/token_model.h"
#include "brigade/tokenizer/unigram_score.h"

namespace brigade {
namespace {

// What an unknown character costs below the lowest score, as in SentencePiece.
constexpr double kUnknownPenalty = 10;
constexpr size_t kMaxTokens = size_t{1} << 24;

class UnigramModel : public TokenModel {
 public:
  explicit UnigramModel(const JsonNode& node);

  std::unique_ptr<ModelScratch> make_scratch() const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::string summary() const override { return "Unigram"; }

 private:
  struct Scratch;
  class Search;

  const std::string file_;
  Vocabulary vocabulary_;
  std::vector<double> scores_;  // by id
  ByteTrie trie_;
  double unk_score_ = 0;
  int32_t unk_id_ = -1;  // -1: there is none
  bool byte_fallback_ = false;
  // Tokens <0x00> to <0xFF>, -1 where the vocabulary lacks them.
  std::array<int32_t, 256> byte_ids_{};

  void read_vocabulary(const JsonNode& list);
  void encode(
      std::string_view text,
      ModelScratch& scratch,
      std::vector<int32_t>& ids) const override;
  // Appends the tokens of a run of unknown characters.
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;
  [[noreturn]] void fail_unknown(char32_t c) const;
};

struct UnigramModel::Scratch : ModelScratch {
  // The best way to reach a position.
  struct PathNode {
    double score = 0;
    int32_t begin = -1;  // of the last token; -1: not reached so far
    int32_t id = -1;     // of the last token
  };
  // A token of the best path.
  struct PathToken {
    int32_t begin = 0;
    int32_t end = 0;
    int32_t id = -1;
  };

  std::vector<PathNode> nodes;
  std::vector<PathToken> path;
};

UnigramModel::UnigramModel(const JsonNode& node) : file_(node.file()) {
  byte_fallback_ = node.boolean_at("byte_fallback", false);
  read_vocabulary(node.at("vocab"));
  if (const auto unk = node.find("unk_id"))
    unk_id_ = static_cast<int32_t>(
        unk->integer(0, static_cast<int64_t>(scores_.size()) - 1));
  double lowest = std::numeric_limits<double>::infinity();
  for (const double score : scores_)
    lowest = std::min(lowest, score);
  unk_score_ = lowest - kUnknownPenalty;
  for (size_t byte = 0; byte < 256; ++byte)
    byte_ids_[byte] =
        vocabulary_.id(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  std::vector<ByteTrie::Entry> entries;
  entries.reserve(vocabulary_.ids().size());
  for (const auto& [text, id] : vocabulary_.ids())
    entries.emplace_back(text, id);
  trie_ = ByteTrie(std::move(entries));
}

void UnigramModel::read_vocabulary(const JsonNode& list) {
  const size_t count = list.size();
  if (count == 0)
    list.fail("the vocabulary is empty");
  if (count > kMaxTokens)
    list.fail(fmt::format("{} tokens are more than {}", count, kMaxTokens));
  vocabulary_.reserve(count);
  scores_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& entry = list.value()[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
        !entry[1].is_number())
      list.fail_at(std::to_string(i), "expected [\"token\", score]");
    vocabulary_.add(
        entry[0].get_ref<const std::string&>(), static_cast<int32_t>(i));
    const auto score = entry[1].get<double>();
    scores_.push_back(entry[1].is_number_float() ? engine_score(score) : score);
  }
}

std::unique_ptr<ModelScratch> UnigramModel::make_scratch() const {
  return std::make_unique<Scratch>();
}

// The search for the best path. Where no token reaches across a position, the
// path up to there is final and handed over, so that memory stays small in a
// text of any length. The score is carried on, not begun again: with other
// rounding, other paths of equal score would win.
class UnigramModel::Search {
 public:
  Search(
      const UnigramModel& model,
      std::string_view text,
      Scratch& scratch,
      std::vector<int32_t>& ids)
      : model_(model),
        text_(text),
        nodes_(scratch.nodes),
        path_(scratch.path),
        ids_(ids) {
    nodes_.assign(1, {});
  }

  void run() {
    for (size_t at = 0; at < text_.size();) {
      if (at == reach_ && at > begin_)
        hand_over(at);
      const size_t length = utf8_length(text_[at]);
      const double score = nodes_[at - begin_].score;
      bool has_single = false;
      model_.trie_.for_each_prefix(
          text_.substr(at), [&](size_t bytes, int32_t id) {
            offer(at, at + bytes, id, model_.scores_[id] + score);
            has_single = has_single || bytes == length;
          });
      if (!has_single &&
          offer(at, at + length, model_.unk_id_, model_.unk_score_ + score) &&
          model_.unk_id_ < 0)
        model_.fail_unknown(utf8_code_point(text_, at));
      at += length;
    }
    hand_over(text_.size());
    end_unknown(text_.size());
  }

 private:
  using PathNode = Scratch::PathNode;
  using PathToken = Scratch::PathToken;
  static constexpr size_t kNone = std::string_view::npos;

  const UnigramModel& model_;
  const std::string_view text_;
  std::vector<PathNode>& nodes_;  // of positions from begin_ on
  std::vector<PathToken>& path_;
  std::vector<int32_t>& ids_;
  size_t begin_ = 0;
  size_t reach_ = 0;  // the last position that any token so far ends at
  // Unknown characters fuse, also across hand-overs.
  size_t unknown_begin_ = kNone;

  bool offer(size_t at, size_t end, int32_t id, double score) {
    if (end > reach_) {
      reach_ = end;
      nodes_.resize(end - begin_ + 1);
    }
    PathNode& node = nodes_[end - begin_];
    if (node.begin >= 0 && score <= node.score)
      return false;
    node = {
        .score = score, .begin = static_cast<int32_t>(at - begin_), .id = id};
    return true;
  }

  void hand_over(size_t end) {
    path_.clear();
    for (auto at = static_cast<int32_t>(end - begin_); at > 0;
         at = nodes_[at].begin)
      path_.push_back(
          {.begin = nodes_[at].begin, .end = at, .id = nodes_[at].id});
    for (auto token = path_.rbegin(); token != path_.rend(); ++token) {
      const size_t begin = begin_ + static_cast<size_t>(token->begin);
      if (token->id == model_.unk_id_) {
        if (unknown_begin_ == kNone)
          unknown_begin_ = begin;
      } else {
        end_unknown(begin);
        ids_.push_back(token->id);
      }
    }
    nodes_.assign(1, {.score = nodes_[end - begin_].score});
    begin_ = end;
  }

  void end_unknown(size_t end) {
    if (unknown_begin_ == kNone)
      return;
    model_.append_unknown(
        text_.substr(unknown_begin_, end - unknown_begin_), ids_);
    unknown_begin_ = kNone;
  }
};

void UnigramModel::encode(
    std::string_view text,
    ModelScratch& scratch,
    std::vector<int32_t>& ids) const {
  if (text.size() > INT32_MAX)
    throw DataError(fmt::format(
        "[tokenizer] {}: a word of {} bytes is too long; cut the text into "
        "documents of less than 2 GB",
        file_,
        text.size()));
  Search(*this, text, static_cast<Scratch&>(scratch), ids).run();
}

void UnigramModel::append_unknown(
    std::string_view text,
    std::vector<int32_t>& ids) const {
  // Unknown characters in a row can be a token; the token of unknown
  // characters itself can stand in the text.
  if (const auto id = vocabulary_.id(text)) {
    ids.push_back(*id);
    return;
  }
  const bool spelled =
      byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) {
        return byte_ids_[static_cast<uint8_t>(c)] >= 0;
      });
  if (!spelled) {
    ids.push_back(unk_id_);
    return;
  }
  for (const char c : text)
    ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

void UnigramModel::fail_unknown(char32_t c) const {
  throw DataError(fmt::format(
      "[tokenizer] {}: at /model/unk_id: there is no unknown token, and the "
      "character U+{:04X} needs it",
      file_,
      static_cast<uint32_t>(c)));
}

}  // namespace

std::unique_ptr<TokenModel> make_unigram_model(const JsonNode& node) {
  return std::make_unique<UnigramModel>(node);
}

}  // namespace brigade

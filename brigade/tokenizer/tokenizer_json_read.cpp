// Reading a tokenizer.json; every error names its place in the file.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "brigade/files/file.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/pattern.h"
#include "brigade/tokenizer/tokenizer_json.h"

namespace brigade {

namespace fs = std::filesystem;

std::unique_ptr<HuggingFaceTokenizer> HuggingFaceTokenizer::load(
    const fs::path& path) {
  const MappedFile file(path);
  return std::make_unique<HuggingFaceTokenizer>(
      file.text(), path.string(), read_tokens_beside(path));
}

HuggingFaceTokenizer::HuggingFaceTokenizer(
    std::string_view text,
    const std::string& name,
    const TokensBeside& beside)
    : name_(name) {
  const JsonDocument document(text, {"tokenizer", name});
  read(document.root(), beside);
  find_bos_and_eos(beside.names);
  description_ = fmt::format(
      "tokenizer.json {}: {}, {} tokens, {} added tokens",
      name,
      model_->summary(),
      vocab_size(),
      added_.size());
}

void HuggingFaceTokenizer::read(
    const JsonNode& root,
    const TokensBeside& beside) {
  if (const auto version = root.find("version")) {
    if (version->string() != "1.0")
      refuse(*version, fmt::format("version \"{}\"", version->string()));
  }
  if (const auto node = root.find("normalizer"))
    normalizer_ = make_normalizer(*node);
  if (const auto node = root.find("pre_tokenizer"))
    pre_tokenizer_ = make_pre_tokenizer(*node);
  if (const auto node = root.find("decoder"))
    decoder_ = make_decoder(*node);
  const JsonNode model = root.at("model");
  model_ = make_token_model(model);
  max_id_ = model_->vocabulary().max_id();
  RegexScratch scratch;
  if (const auto node = root.find("added_tokens")) {
    for (const JsonNode& token : node->elements())
      read_added_token(token, scratch);
  }
  add_tokens_beside(beside, scratch);
  build_matchers();
  if (const auto node = root.find("post_processor")) {
    post_processor_ = PostProcessor(*node);
    check_template(*node);
  }
  if (max_id_ < 0)
    model.fail("the vocabulary is empty");
}

// Where several tokens of `listed`, or of the other lists, have one content,
// the first keeps the id, the last the flags.
void HuggingFaceTokenizer::add_tokens_beside(
    const TokensBeside& beside,
    RegexScratch& scratch) {
  const auto is_named = [&](const std::string& content) {
    return std::any_of(
        beside.named.begin(), beside.named.end(), [&](const AddedToken& named) {
          return named.content == content;
        });
  };
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : beside.listed) {
    if (!beside.gives_way || !added_.contains(token.id))
      tokens.push_back(token);
  }
  // With added_tokens_decoder only what it lists becomes special by a name.
  for (const auto& [id, added] : added_) {
    if (beside.gives_way && is_named(added.token.content))
      tokens.push_back(added.token);
  }
  for (AddedToken& token : tokens)
    token.special = token.special || is_named(token.content);
  for (AddedToken& token : tokens) {
    if (!token.content.empty())
      add(std::move(token), scratch);
  }
  tokens.clear();
  for (const auto* list : {&beside.named, &beside.extra}) {
    for (AddedToken token : *list) {
      token.special = token.special || is_named(token.content);
      if (!token.content.empty() && !added_ids_.contains(token.content))
        tokens.push_back(std::move(token));
    }
  }
  for (AddedToken& token : tokens)
    add(std::move(token), scratch);
}

void HuggingFaceTokenizer::build_matchers() {
  for (const auto& [id, added] : added_) {
    cuts_.add(added.token.content, added.token);
    if (!added.normalized.empty())
      cuts_.add(added.normalized, added.token);
    if (!added.token.normalized)
      raw_matcher_.add(added.token.content, added.token);
    else if (!added.normalized.empty())
      normalized_matcher_.add(added.normalized, added.token);
  }
}

void HuggingFaceTokenizer::read_added_token(
    const JsonNode& node,
    RegexScratch& scratch) {
  AddedToken token;
  token.content = node.at("content").string();
  token.single_word = node.at("single_word").boolean();
  token.lstrip = node.at("lstrip").boolean();
  token.rstrip = node.at("rstrip").boolean();
  token.normalized = node.at("normalized").boolean();
  token.special = node.at("special").boolean();
  const JsonNode id_node = node.at("id");
  token.id = static_cast<int32_t>(id_node.integer(0, INT32_MAX - 1));
  if (token.content.empty())
    node.at("content").fail("the token is empty");

  // Hugging Face's engine gives ids itself: the model's, or the next free one.
  // A file that says otherwise would silently mean two things.
  const auto known = token_id(token.content);
  const int64_t expected = known ? *known : next_free_id();
  if (token.id != expected)
    id_node.fail(fmt::format(
        "the token \"{}\" has id {} here, but {} {}",
        token.content,
        token.id,
        known ? "elsewhere in the file" : "the next free id is",
        expected));
  if (const auto other = added_.find(token.id); other != added_.end())
    id_node.fail(fmt::format(
        "id {} also belongs to \"{}\"", token.id, other->second.token.content));

  add(std::move(token), scratch);
}

// As Hugging Face's engine counts: behind the added tokens, once there is one
// behind the vocabulary.
int32_t HuggingFaceTokenizer::next_free_id() const {
  int64_t next = model_->vocabulary().size();
  for (const auto& [id, added] : added_)
    next = std::max<int64_t>(next, int64_t{id} + 1);
  return static_cast<int32_t>(next);
}

// A token that is there already keeps its id, whatever `token` says.
void HuggingFaceTokenizer::add(AddedToken token, RegexScratch& scratch) {
  const auto known = token_id(token.content);
  const int32_t id = known ? *known : next_free_id();
  token.id = id;
  NormalizedText normalized{
      .text = token.content,
      .max_bytes = max_grown_bytes(token.content.size())};
  if (token.normalized && normalizer_)
    normalizer_(normalized, scratch);
  max_id_ = std::max<int64_t>(max_id_, id);
  added_ids_[token.content] = id;
  if (token.special)
    special_.insert(token.content);
  added_[id] = {
      .token = std::move(token), .normalized = std::move(normalized.text)};
}

void HuggingFaceTokenizer::check_template(const JsonNode& node) const {
  for (const auto& ids : {post_processor_.prefix(), post_processor_.suffix()}) {
    for (const int32_t id : ids) {
      if (!token_text(id))
        node.fail(
            fmt::format("the template adds id {}, which no token has", id));
    }
  }
}

void HuggingFaceTokenizer::find_bos_and_eos(const SpecialNames& names) {
  const auto find = [&](const std::optional<std::string>& given,
                        std::initializer_list<const char*> usual) {
    if (given)
      return given->empty() ? std::optional<int32_t>() : token_id(*given);
    for (const char* name : usual) {
      if (const auto id = token_id(name))
        return id;
    }
    return std::optional<int32_t>();
  };
  bos_ = find(
      names.bos,
      {"<s>",
       "<|begin_of_text|>",
       "<bos>",
       "<|startoftext|>",
       "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>",
       "<|endoftext|>"});
  eos_ = find(
      names.eos,
      {"</s>",
       "<|end_of_text|>",
       "<eos>",
       "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
       "<|endoftext|>"});
}

}  // namespace brigade

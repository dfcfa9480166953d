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

namespace {

// "bos_token" is a string, or an object with the added token's content.
std::optional<std::string> special_name(
    const JsonNode& config,
    std::string_view key) {
  const auto value = config.find(key);
  if (!value)
    return std::nullopt;
  return value->value().is_object() ? value->at("content").string()
                                    : value->string();
}

}  // namespace

SpecialNames special_names_beside(const fs::path& path) {
  const fs::path file = path.parent_path() / "tokenizer_config.json";
  std::error_code error;
  if (!fs::exists(file, error))
    return {};
  const std::string text = read_text_file(file);
  const JsonDocument document(text, {"tokenizer", file.string()});
  const JsonNode config = document.root();
  return {
      .bos = special_name(config, "bos_token"),
      .eos = special_name(config, "eos_token")};
}

std::unique_ptr<HuggingFaceTokenizer> HuggingFaceTokenizer::load(
    const fs::path& path) {
  const MappedFile file(path);
  const std::string_view text(
      reinterpret_cast<const char*>(file.bytes().data()), file.size_bytes());
  return std::make_unique<HuggingFaceTokenizer>(
      text, path.string(), special_names_beside(path));
}

HuggingFaceTokenizer::HuggingFaceTokenizer(
    std::string_view text,
    const std::string& name,
    const SpecialNames& names)
    : name_(name) {
  const JsonDocument document(text, {"tokenizer", name});
  read(document.root());
  find_bos_and_eos(names);
  description_ = fmt::format(
      "tokenizer.json {}: {}, {} tokens, {} added tokens",
      name,
      model_->summary(),
      vocab_size(),
      added_.size());
}

void HuggingFaceTokenizer::read(const JsonNode& root) {
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
  if (const auto node = root.find("added_tokens"))
    read_added_tokens(*node);
  if (const auto node = root.find("post_processor")) {
    post_processor_ = PostProcessor(*node);
    check_template(*node);
  }
  if (max_id_ < 0)
    model.fail("the vocabulary is empty");
}

void HuggingFaceTokenizer::read_added_tokens(const JsonNode& list) {
  RegexScratch scratch;
  for (size_t i = 0; i < list.size(); ++i)
    read_added_token(list.element(i), scratch);
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
  const int64_t tokens = model_->vocabulary().size();
  const int64_t next_free =
      max_id_ >= tokens && !added_.empty() ? max_id_ + 1 : tokens;
  const int64_t expected = known ? *known : next_free;
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

  NormalizedText normalized{
      .text = token.content,
      .max_bytes = max_grown_bytes(token.content.size())};
  if (token.normalized && normalizer_)
    normalizer_(normalized, scratch);
  max_id_ = std::max<int64_t>(max_id_, token.id);
  added_ids_[token.content] = token.id;
  if (token.special)
    special_.insert(token.content);
  const auto id = token.id;
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
      return token_id(*given);
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

#include "brigade/tokenizer/post_processor.h"

#include <fmt/format.h>

#include "brigade/tokenizer/json_parts.h"

namespace brigade {
namespace {

std::vector<int32_t> token_ids(const JsonNode& list) {
  std::vector<int32_t> ids;
  for (const JsonNode& id : list.elements())
    ids.push_back(static_cast<int32_t>(id.integer(0, INT32_MAX - 1)));
  return ids;
}

// ["</s>", 2]
std::vector<int32_t> named_token(const JsonNode& pair) {
  if (pair.size() != 2)
    pair.fail("expected [token, id]");
  return {static_cast<int32_t>(pair.element(1).integer(0, INT32_MAX - 1))};
}

}  // namespace

std::vector<PostProcessor::Part> PostProcessor::template_parts(
    const JsonNode& node) {
  const JsonNode pieces = node.at("single");
  std::vector<Part> parts;
  size_t sequences = 0;
  for (const JsonNode& piece : pieces.elements()) {
    if (const auto special = piece.find("SpecialToken")) {
      const std::string& name = special->at("id").string();
      const JsonNode known = node.at("special_tokens");
      parts.push_back(token_ids(known.at(name).at("ids")));
      if (parts.back().empty())
        parts.pop_back();  // it adds nothing
    } else {
      const JsonNode id = piece.at("Sequence").at("id");
      if (id.string() != "A")
        id.fail("a template for one text can only hold sequence A");
      parts.emplace_back();
      ++sequences;
    }
  }
  if (sequences != 1)
    pieces.fail("the template must hold sequence A exactly once");
  return parts;
}

void PostProcessor::add(const JsonNode& node, int depth) {
  require_depth(node, depth);
  const std::string& type = type_of(node);
  if (type == "Sequence") {
    for (const JsonNode& part : node.at("processors").elements())
      add(part, depth + 1);
  } else if (type == "TemplateProcessing") {
    templates_.push_back(template_parts(node));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    templates_.push_back(
        {named_token(node.at("cls")), {}, named_token(node.at("sep"))});
  } else if (type != "ByteLevel") {
    refuse(node, fmt::format("the post-processor \"{}\"", type));
  }
}

std::vector<int32_t> PostProcessor::prefix() const {
  std::vector<int32_t> ids;
  for (const auto& parts : templates_) {
    std::vector<int32_t> front;
    for (const Part& part : parts) {
      if (part.empty())
        break;
      front.insert(front.end(), part.begin(), part.end());
    }
    ids.insert(ids.begin(), front.begin(), front.end());
  }
  return ids;
}

std::vector<int32_t> PostProcessor::suffix() const {
  std::vector<int32_t> ids;
  for (const auto& parts : templates_) {
    bool after_text = false;
    for (const Part& part : parts) {
      if (part.empty())
        after_text = true;
      else if (after_text)
        ids.insert(ids.end(), part.begin(), part.end());
    }
  }
  return ids;
}

void PostProcessor::process(
    std::vector<int32_t>& ids,
    SpecialTokens special_tokens) const {
  if (special_tokens == SpecialTokens::kNone || templates_.empty())
    return;
  const std::vector<int32_t> front = prefix();
  const std::vector<int32_t> back = suffix();
  ids.insert(ids.begin(), front.begin(), front.end());
  ids.insert(ids.end(), back.begin(), back.end());
}

}  // namespace brigade

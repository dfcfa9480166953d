// The "post_processor" of a tokenizer.json: what is put around the tokens of
// one text, such as <s> ... </s>.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/json/node.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

class PostProcessor {
 public:
  PostProcessor() = default;  // adds nothing
  // TemplateProcessing (its "single" template), ByteLevel (which is about
  // offsets only), BertProcessing, RobertaProcessing, Sequence; anything else
  // is refused by name (DataError).
  explicit PostProcessor(const JsonNode& node) { add(node, 0); }

  void process(std::vector<int32_t>& ids, SpecialTokens special_tokens) const;

  // The special tokens in front of the text and after it.
  std::vector<int32_t> prefix() const;
  std::vector<int32_t> suffix() const;

 private:
  // A part of a template: special tokens, or (empty) the text itself.
  using Part = std::vector<int32_t>;
  std::vector<std::vector<Part>> templates_;

  void add(const JsonNode& node, int depth);
  static std::vector<Part> template_parts(const JsonNode& node);
};

}  // namespace brigade

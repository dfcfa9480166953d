#include "brigade/gguf/pre_tokenizer_name.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "brigade/base/check.h"

namespace brigade {
namespace {

using nlohmann::json;

// As the families' own tokenizer.json files have them.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLettersDiffer =
    "llama.cpp approximates its classes of letters: words with letters outside "
    "ASCII or combining marks can be cut elsewhere";

enum class Cut { kGpt2, kDigitsThenGpt2, kRegex };

struct Family {
  const char* name;
  const char* regex = "";  // of kRegex
  Cut cut = Cut::kRegex;
  WholeWords whole_words = WholeWords::kAreMerged;
  BeginToken begin_token = BeginToken::kNotAdded;
  const char* difference = "";
};

constexpr std::array kFamilies = {
    Family{.name = "gpt-2", .cut = Cut::kGpt2},
    Family{.name = "smollm", .cut = Cut::kDigitsThenGpt2},
    Family{
        .name = "llama-bpe",
        .regex = kLlama3,
        .whole_words = WholeWords::kIgnoreMerges,
        .begin_token = BeginToken::kAdded},
    Family{.name = "smaug-bpe", .regex = kLlama3},
    Family{.name = "qwen2", .regex = kQwen2},
    Family{.name = "qwen35", .regex = kQwen35},
    Family{
        .name = "tekken",
        .regex = kTekken,
        .whole_words = WholeWords::kIgnoreMerges,
        .begin_token = BeginToken::kAdded,
        .difference = kLettersDiffer},
    Family{.name = "gpt-4o", .regex = kGpt4o, .difference = kLettersDiffer},
};

// A Sequence as the list of its parts.
void flatten(const json& node, std::vector<json>& parts) {
  if (!node.is_object())
    return;
  if (node.value("type", "") != "Sequence") {
    parts.push_back(node);
    return;
  }
  for (const json& part : node.at("pretokenizers"))
    flatten(part, parts);
}

bool is_byte_level(const json& part, bool use_regex) {
  return part.value("type", "") == "ByteLevel" &&
         !part.value("add_prefix_space", true) &&
         part.value("use_regex", true) == use_regex;
}

// A Split into the matches. The regexes cover every text, so that what lies
// between matches is nothing.
bool is_split(const json& part, const std::string& regex) {
  if (part.value("type", "") != "Split" ||
      part.at("pattern").value("Regex", "") != regex)
    return false;
  const bool inverts = part.value("invert", false);
  return part.value("behavior", "") == (inverts ? "Removed" : "Isolated");
}

bool fits(const Family& family, const std::vector<json>& parts) {
  switch (family.cut) {
    case Cut::kGpt2:
      return parts.size() == 1 && is_byte_level(parts[0], true);
    case Cut::kDigitsThenGpt2:
      return parts.size() == 2 && parts[0].value("type", "") == "Digits" &&
             parts[0].value("individual_digits", false) &&
             is_byte_level(parts[1], true);
    case Cut::kRegex:
      return parts.size() == 2 && is_split(parts[0], family.regex) &&
             is_byte_level(parts[1], false);
  }
  return false;
}

const Family* find_family(const std::string& name) {
  const auto* const found =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const auto& family) {
        return family.name == name;
      });
  return found == kFamilies.end() ? nullptr : found;
}

}  // namespace

std::vector<PreTokenizerName> pre_tokenizer_names(const json& pre_tokenizer) {
  std::vector<json> parts;
  flatten(pre_tokenizer, parts);
  std::vector<PreTokenizerName> names;
  for (const Family& family : kFamilies) {
    if (fits(family, parts))
      names.push_back({family.name, family.whole_words, family.difference});
  }
  return names;
}

json pre_tokenizer_named(const std::string& name) {
  const Family* family = find_family(name);
  if (family == nullptr)
    return nullptr;
  json byte_level = {
      {"type", "ByteLevel"},
      {"add_prefix_space", false},
      {"trim_offsets", true},
      {"use_regex", family->cut != Cut::kRegex}};
  json first;
  switch (family->cut) {
    case Cut::kGpt2:
      return byte_level;
    case Cut::kDigitsThenGpt2:
      first = {{"type", "Digits"}, {"individual_digits", true}};
      break;
    case Cut::kRegex:
      first = {
          {"type", "Split"},
          {"pattern", {{"Regex", family->regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
      break;
  }
  return {
      {"type", "Sequence"},
      {"pretokenizers", json::array({first, byte_level})}};
}

WholeWords whole_words_of(const std::string& name) {
  const Family* family = find_family(name);
  BRIGADE_ASSERT(family != nullptr, "pre-tokenizer {}", name);
  return family->whole_words;
}

BeginToken begin_token_of(const std::string& name) {
  const Family* family = find_family(name);
  BRIGADE_ASSERT(family != nullptr, "pre-tokenizer {}", name);
  return family->begin_token;
}

}  // namespace brigade

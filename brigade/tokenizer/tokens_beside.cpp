// As transformers 5 does: PreTrainedTokenizerBase._from_pretrained() and
// TokenizersBackend.__init__().
#include "brigade/tokenizer/tokens_beside.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "brigade/base/parse_number.h"
#include "brigade/files/file.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/node.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// The order is that in which they are added. Tokens of a model's own, such as
// "image_token", follow in the order of the file.
constexpr std::array kSpecialKeys = {
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token"};

// "bos_token" is a string, an object with the added token's content, or null:
// "".
std::optional<std::string> special_name(
    const JsonNode& config,
    std::string_view key) {
  const auto value = config.find(key);
  if (!value)
    return config.value().contains(std::string(key))
               ? std::optional<std::string>("")
               : std::nullopt;
  return value->value().is_object() ? value->at("content").string()
                                    : value->string();
}

SpecialNames special_names(const JsonNode& config) {
  return {
      .bos = special_name(config, "bos_token"),
      .eos = special_name(config, "eos_token")};
}

AddedToken read_token(const JsonNode& node, bool is_special) {
  AddedToken token;
  if (!node.value().is_object()) {
    token.content = node.string();
    token.special = is_special;
    token.normalized = !is_special;
    return token;
  }
  token.content = node.at("content").string();
  token.special = node.boolean_at("special", is_special);
  token.single_word = node.boolean_at("single_word", false);
  token.lstrip = node.boolean_at("lstrip", false);
  token.rstrip = node.boolean_at("rstrip", false);
  token.normalized = node.boolean_at("normalized", !token.special);
  return token;
}

// Special tokens by key, and those in lists.
struct Specials {
  std::vector<std::pair<std::string, AddedToken>> named;
  std::vector<AddedToken> extra;
  bool has_list = false;
};

void put_named(const std::string& key, AddedToken token, Specials& specials) {
  token.special = true;
  for (auto& [known, value] : specials.named) {
    if (known == key) {
      value = std::move(token);
      return;
    }
  }
  specials.named.emplace_back(key, std::move(token));
}

void read_extra(const JsonNode& node, Specials& specials) {
  if (node.value().is_object()) {
    for (const auto& [key, value] : node.value().items())
      put_named(key, read_token(node.at(key), true), specials);
    return;
  }
  for (const JsonNode& element : node.elements()) {
    const bool is_typed =
        element.value().is_object() && element.value().contains("__type");
    specials.extra.push_back(read_token(element, !is_typed));
  }
}

// `order` has the keys of `root` in the order of the file.
void read_specials(
    const JsonNode& root,
    const nlohmann::ordered_json& order,
    Specials& specials) {
  for (const char* key : kSpecialKeys) {
    if (const auto node = root.find(key))
      put_named(key, read_token(*node, true), specials);
  }
  for (const auto& [key, value] : order.items()) {
    const bool is_name = value.is_string() || value.contains("content");
    if (key.ends_with("_token") && is_name)
      put_named(key, read_token(root.at(key), true), specials);
  }
  const auto extra = root.find("extra_special_tokens");
  const bool is_list = extra && extra->value().is_array();
  if (extra)
    read_extra(*extra, specials);
  // The older name counts where the other one gives no list.
  const auto older = root.find("additional_special_tokens");
  const bool is_read =
      older && !specials.has_list && !(is_list && !extra->value().empty());
  if (is_read)
    read_extra(*older, specials);
  specials.has_list = specials.has_list || is_list || is_read;
}

void read_listed(const JsonNode& list, TokensBeside& beside) {
  list.require_object();
  std::map<int64_t, AddedToken> by_id;
  for (const auto& [name, value] : list.value().items()) {
    const auto id = parse_number<int64_t>(name).value_or(-1);
    if (id < 0)
      list.fail(fmt::format("\"{}\" is not a token's id", name));
    const JsonNode node = list.at(name);
    node.require_object();
    by_id[id] = read_token(node, false);
  }
  for (auto& [id, token] : by_id)
    beside.listed.push_back(std::move(token));
  beside.gives_way = false;
}

void read_added_tokens(
    const JsonNode& root,
    const Specials& specials,
    TokensBeside& beside) {
  root.require_object();
  std::map<int64_t, AddedToken> by_id;
  for (const auto& [content, value] : root.value().items()) {
    AddedToken token;
    token.id = static_cast<int32_t>(root.at(content).integer(0, INT32_MAX - 1));
    token.content = content;
    const auto is_it = [&](const AddedToken& special) {
      return special.content == token.content;
    };
    token.special =
        std::any_of(specials.extra.begin(), specials.extra.end(), is_it);
    for (const auto& [key, special] : specials.named)
      token.special = token.special || is_it(special);
    token.normalized = !token.special;
    by_id[token.id] = std::move(token);
  }
  for (auto& [id, token] : by_id)
    beside.listed.push_back(std::move(token));
}

// Calls use(root, keys in their order) if the file is there.
template <typename Use>
void read_if_there(const fs::path& file, Use&& use) {
  if (!has_file(file))
    return;
  const std::string text = read_text_file(file);
  const JsonDocument document(text, {"tokenizer", file.string()});
  document.root().require_object();
  use(document.root(), nlohmann::ordered_json::parse(text));
}

}  // namespace

TokensBeside read_tokens_beside(const fs::path& path) {
  const fs::path folder = path.parent_path();
  TokensBeside beside;
  Specials specials;
  read_if_there(
      folder / "tokenizer_config.json",
      [&](const JsonNode& config, const nlohmann::ordered_json& order) {
        beside.names = special_names(config);
        read_specials(config, order, specials);
        if (const auto list = config.find("added_tokens_decoder"))
          read_listed(*list, beside);
        beside.adds_bos = config.boolean_at("add_bos_token", true);
        beside.adds_eos = config.boolean_at("add_eos_token", false);
        beside.is_legacy = config.boolean_at("legacy", false);
      });
  if (beside.gives_way) {
    read_if_there(
        folder / "special_tokens_map.json",
        [&](const JsonNode& map, const nlohmann::ordered_json& order) {
          SpecialNames names = special_names(map);
          if (names.bos)
            beside.names.bos = std::move(names.bos);
          if (names.eos)
            beside.names.eos = std::move(names.eos);
          read_specials(map, order, specials);
        });
    read_if_there(
        folder / "added_tokens.json",
        [&](const JsonNode& map, const nlohmann::ordered_json&) {
          read_added_tokens(map, specials, beside);
        });
  }
  // Both files' keys in one order; those of a model's own stay behind.
  std::ranges::stable_sort(specials.named, {}, [](const auto& entry) {
    return std::ranges::find(kSpecialKeys, entry.first);
  });
  for (auto& [key, token] : specials.named)
    beside.named.push_back(std::move(token));
  beside.extra = std::move(specials.extra);
  return beside;
}

}  // namespace brigade

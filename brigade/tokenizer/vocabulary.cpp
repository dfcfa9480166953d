#include "brigade/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace brigade {
namespace {

// Keeps ids far from overflow; the largest known vocabulary has 262,144.
constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

}  // namespace

Vocabulary::Vocabulary(const JsonNode& node) {
  node.require_object();
  const auto& tokens = node.value();
  reserve(tokens.size());
  for (auto it = tokens.begin(); it != tokens.end(); ++it) {
    if (!it->is_number_unsigned() || it->get<uint64_t>() > kMaxId)
      node.fail_at(
          it.key(),
          fmt::format(
              "expected an id from 0 to {}, found {}",
              kMaxId,
              it->is_primitive() ? it->dump() : it->type_name()));
    const auto id = static_cast<int32_t>(it->get<uint64_t>());
    if (!add(it.key(), id))
      node.fail_at(
          it.key(), fmt::format("id {} also belongs to \"{}\"", id, *text(id)));
  }
}

void Vocabulary::reserve(size_t tokens) {
  ids_.reserve(tokens);
  texts_.reserve(tokens);
}

bool Vocabulary::add(const std::string& text, int32_t id) {
  if (texts_.contains(id))
    return false;
  const auto entry = ids_.insert_or_assign(text, id).first;
  texts_.emplace(id, &entry->first);
  max_id_ = std::max(max_id_, id);
  max_token_bytes_ = std::max(max_token_bytes_, text.size());
  return true;
}

std::optional<int32_t> Vocabulary::id(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt
                             : std::optional<int32_t>(found->second);
}

const std::string* Vocabulary::text(int32_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? nullptr : found->second;
}

}  // namespace brigade

#include "brigade/json/string_member.h"

#include <utility>

#include "brigade/json/skip_value.h"

namespace brigade {
namespace {

using nlohmann::json;

// Nothing is built, so nesting costs little.
constexpr size_t kMaxDepth = 1000;

class MemberFinder final : public JsonVisitor {
 public:
  MemberFinder(std::string_view key, StringMember& found)
      : key_(key), found_(found) {}

  bool scalar(json&& value, const JsonPosition& at) override {
    if (!is_member(at))
      return true;
    if (value.is_string()) {
      found_.outcome = StringMember::Outcome::kString;
      found_.text = std::move(value.get_ref<std::string&>());
    } else {
      found_.outcome = StringMember::Outcome::kOtherType;
    }
    return true;
  }
  bool begin_object(const JsonPosition& at) override {
    if (at.depth() == 0)
      found_.outcome = StringMember::Outcome::kAbsent;
    return begin(at);
  }
  bool begin_array(const JsonPosition& at) override { return begin(at); }
  bool key(std::string& name, const JsonPosition& at) override {
    if (at.depth() == 1)
      is_wanted_ = name == key_;
    return true;
  }

 private:
  bool is_member(const JsonPosition& at) const {
    return at.depth() == 1 && is_wanted_;
  }
  bool begin(const JsonPosition& at) {
    if (is_member(at))
      found_.outcome = StringMember::Outcome::kOtherType;
    return true;
  }

  std::string_view key_;
  StringMember& found_;
  bool is_wanted_ = false;
};

}  // namespace

std::optional<JsonFault> find_string_member(
    std::string_view text,
    std::string_view key,
    StringMember& found) {
  found = {};
  MemberFinder finder(key, found);
  auto fault = visit_json(text, {.max_depth = kMaxDepth}, finder);
  if (!fault)
    return std::nullopt;
  // It may lie in a member that nobody reads, and be JSON all the same.
  auto member = string_member_among_any(text, key);
  if (!member)
    return fault;
  found = std::move(*member);
  return std::nullopt;
}

}  // namespace brigade

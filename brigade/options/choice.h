// The names of an enum's values, one table per enum: config keys, messages and
// files use them. An enum whose values have names specialises kChoices beside
// its definition; to_string(), parsing, ranges in messages and docs follow.
//
// PURE.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brigade {

template <class Enum>
struct Choice {
  Enum value;
  const char* name;
};
template <class Enum>
Choice(Enum, const char*) -> Choice<Enum>;

// All values of an enum with their names, in the order of the docs. Empty for a
// type that has no such table.
template <class Enum>
inline constexpr std::array<Choice<Enum>, 0> kChoices{};

template <class Enum>
concept NamedChoice = !kChoices<Enum>.empty();

// "?" for what is no value of the enum.
template <NamedChoice Enum>
constexpr const char* to_string(Enum value) {
  for (const Choice<Enum>& choice : kChoices<Enum>) {
    if (choice.value == value)
      return choice.name;
  }
  return "?";
}

// The value of that name; absent: none has it.
template <NamedChoice Enum>
constexpr std::optional<Enum> find_choice(std::string_view name) {
  for (const Choice<Enum>& choice : kChoices<Enum>) {
    if (choice.name == name)
      return choice.value;
  }
  return std::nullopt;
}

// All names, in the order of the docs.
template <NamedChoice Enum>
std::vector<std::string> choice_texts() {
  std::vector<std::string> texts;
  for (const Choice<Enum>& choice : kChoices<Enum>)
    texts.emplace_back(choice.name);
  return texts;
}

}  // namespace brigade

// Option structs as text, from one table of their members: what ranks compare.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "brigade/options/choice.h"

namespace brigade {

// A member of an option struct, with its name in texts.
template <class Options, class Value>
struct OptionMember {
  const char* name;
  Value Options::*member;
};
template <class Options, class Value>
OptionMember(const char*, Value Options::*) -> OptionMember<Options, Value>;

// "mean", "true", "a, b"; "unset" for what is absent.
template <class Value>
std::string option_text(const Value& value) {
  if constexpr (NamedChoice<Value>)
    return to_string(value);
  else if constexpr (requires { value.has_value(); })
    return value ? option_text(*value) : "unset";
  else if constexpr (requires { toString(value); })  // an enum of libtorch's
    return toString(value);
  else if constexpr (requires { value.front().front(); })
    return fmt::format("{}", fmt::join(value, ", "));
  else
    return fmt::format("{}", value);
}

// "name: value" and the end of the line for each of these members.
template <class Options, class... Values>
std::string describe_members(
    const Options& options,
    const OptionMember<Options, Values>&... members) {
  return (
      fmt::format(
          "{}: {}\n", members.name, option_text(options.*members.member)) +
      ...);
}

}  // namespace brigade

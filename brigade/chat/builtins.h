// Jinja's filters, tests and methods of values: those that chat templates use.
// Others are named in the Fault that all functions throw for what they do not
// take.
#pragma once

#include <string>

#include "brigade/chat/value.h"

namespace brigade::jinja {

// operand | name(arguments)
Value apply_filter(
    const std::string& name,
    const Value& operand,
    const CallArguments& arguments);

// operand is name(arguments)
bool passes_test(
    const std::string& name,
    const Value& operand,
    const CallArguments& arguments);

// operand.name(arguments) of a string or a dict. std::nullopt: neither has such
// a method.
std::optional<Value> call_method(
    const Value& operand,
    const std::string& name,
    const CallArguments& arguments);
// Whether a dict has a method of this name, which hides an entry.
bool is_dict_method(const std::string& name);
// Whether it has one that changes it, which also hides an entry, and which
// templates may not call.
bool is_changing_dict_method(const std::string& name);

// operand.name: an entry of a dict, else Undefined. Throws Fault where operand
// is undefined.
Value attribute_of(const Value& operand, const std::string& name);
// operand[key]
Value item_of(const Value& operand, const Value& key);

// The items that a loop goes over: of a list its own, of a string its
// characters, of a dict its keys, of something undefined none.
List items_of(const Value& value);
bool contains(const Value& container, const Value& item);
int64_t length_of(const Value& value);

// The i-th argument or the one of that name.
const Text&
text_argument(const CallArguments& arguments, size_t index, const char* name);
int64_t integer_argument(
    const CallArguments& arguments,
    size_t index,
    const char* name,
    int64_t when_absent);

}  // namespace brigade::jinja

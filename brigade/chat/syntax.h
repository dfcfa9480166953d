// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/chat/value.h"

namespace brigade::jinja {

struct Expression;
using ExpressionPointer = std::unique_ptr<const Expression>;

enum class ExpressionKind {
  kConstant,   // value
  kName,       // name
  kList,       // parts
  kDict,       // parts: key, value, key, value
  kAttribute,  // parts[0].name
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], null where left out
  kCall,       // parts[0](rest, named)
  kFilter,     // parts[0] | name(rest, named)
  kTest,       // parts[0] is name(rest, named)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kBinary,       // parts[0] name parts[1]: + - * / // % ** ~
  kComparison,   // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  kConditional,  // parts[1] if parts[0] else parts[2], null where left out
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 1;
  std::string name;
  Value value;
  std::vector<ExpressionPointer> parts;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Statements = std::vector<std::unique_ptr<const Statement>>;

enum class StatementKind {
  kData,         // text
  kPrint,        // expression
  kIf,           // expression, body, otherwise
  kFor,          // names in expression if condition, body, otherwise
  kSet,          // names = expression
  kSetBlock,     // names = body, through filters
  kMacro,        // text is its name, names and defaults its parameters
  kFilterBlock,  // body, through filters
  kGeneration,   // body
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  int line = 1;
  std::string text;
  std::string attribute;  // of kSet: names[0].attribute
  std::vector<std::string> names;
  ExpressionPointer expression;
  ExpressionPointer condition;
  bool uses_loop = false;  // of kFor: its body names `loop`
  // The defaults of the last parameters.
  std::vector<ExpressionPointer> defaults;
  // Filters on a name that stands for the body, null: none.
  ExpressionPointer filters;
  Statements body;
  Statements otherwise;
};

// What kFilterBlock's and kSetBlock's filters are applied to.
inline constexpr const char* kBodyName = " body";

}  // namespace brigade::jinja

#include "brigade/chat/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/chat/builtins.h"
#include "brigade/chat/lexer.h"
#include "brigade/chat/operators.h"

namespace brigade::jinja {
namespace {

constexpr int kMostCalls = 200;  // of macros inside one another
constexpr int64_t kMostRange = 1'000'000;

struct Scope {
  std::map<std::string, Value> variables;
  const Scope* outer = nullptr;
  // A macro was defined in it or inside it, which refers to it.
  mutable bool is_kept = false;

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end())
        return &found->second;
    }
    return nullptr;
  }
};

// How a statement ended.
enum class Flow { kNormal, kBreak, kContinue };

std::shared_ptr<Dict> loop_of(const List& items, size_t index) {
  const auto place = static_cast<int64_t>(index);
  const auto count = static_cast<int64_t>(items.size());
  auto loop = std::make_shared<Dict>();
  loop->entries = {
      {"index", place + 1},
      {"index0", place},
      {"revindex", count - place},
      {"revindex0", count - place - 1},
      {"first", index == 0},
      {"last", place + 1 == count},
      {"length", count},
      {"depth", int64_t{1}},
      {"depth0", int64_t{0}},
      {"previtem", index > 0 ? items[index - 1] : Value(Undefined{"previtem"})},
      {"nextitem",
       place + 1 < count ? items[index + 1] : Value(Undefined{"nextitem"})},
      {"cycle", Function([place](const CallArguments& arguments) {
         const List& all = arguments.positional;
         if (all.empty())
           throw Fault("loop.cycle() needs values");
         return all[static_cast<size_t>(place) % all.size()];
       })}};
  return loop;
}

class Evaluator {
 public:
  Evaluator(const Dict& variables, const EvaluateOptions& options)
      : options_(options) {
    add_globals(globals_);
    for (const auto& [name, value] : variables.entries)
      globals_.variables[name] = value;
  }

  Text run(const Statements& statements) {
    Text out;
    Scope scope;
    scope.outer = &globals_;
    run(statements, scope, out);
    return out;
  }

 private:
  using Kind = ExpressionKind;

  // A scope for as long as this lives; one that a macro refers to, for as long
  // as the evaluation.
  class Inner {
   public:
    Inner(Evaluator& evaluator, const Scope* outer)
        : evaluator_(evaluator), scope_(std::make_unique<Scope>()) {
      scope_->outer = outer;
    }
    ~Inner() {
      if (scope_->is_kept)
        evaluator_.scopes_.push_back(std::move(scope_));
    }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;
    Scope& operator*() const { return *scope_; }
    Scope* operator->() const { return scope_.get(); }

   private:
    Evaluator& evaluator_;
    std::unique_ptr<Scope> scope_;
  };

  void add_globals(Scope& globals) {
    globals.variables["raise_exception"] =
        Function([](const CallArguments& arguments) -> Value {
          throw Fault(fmt::format(
              "the template refuses: {}",
              text_argument(arguments, 0, "message").bytes()));
        });
    globals.variables["strftime_now"] =
        Function([now = options_.now](const CallArguments& arguments) -> Value {
          const auto time = static_cast<std::time_t>(now);
          std::tm parts{};
          ::gmtime_r(&time, &parts);
          char buffer[256];
          const size_t size = std::strftime(
              buffer,
              sizeof(buffer),
              text_argument(arguments, 0, "format").bytes().c_str(),
              &parts);
          return std::string(buffer, size);
        });
    globals.variables["namespace"] =
        Function([](const CallArguments& arguments) -> Value {
          const auto dict = dict_of_call(arguments);
          dict->is_namespace = true;
          return dict;
        });
    globals.variables["dict"] = Function(dict_of_call);
    globals.variables["range"] = Function(range);
  }

  static std::shared_ptr<Dict> dict_of_call(const CallArguments& arguments) {
    auto dict = std::make_shared<Dict>();
    if (!arguments.positional.empty() && arguments.positional[0].is_dict())
      dict->entries = arguments.positional[0].dict().entries;
    for (const auto& [name, value] : arguments.named)
      (*dict)[name] = value;
    return dict;
  }

  static Value range(const CallArguments& arguments) {
    const size_t count = arguments.positional.size();
    if (count == 0)
      throw Fault("range() needs an end");
    const int64_t begin =
        count > 1 ? integer_argument(arguments, 0, "start", 0) : 0;
    const int64_t end = integer_argument(arguments, count > 1, "stop", 0);
    const int64_t step = integer_argument(arguments, 2, "step", 1);
    if (step == 0)
      throw Fault("the step of range() is not 0");
    List numbers;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      if (static_cast<int64_t>(numbers.size()) == kMostRange)
        throw Fault("range() is too long");
      numbers.emplace_back(i);
    }
    return numbers;
  }

  Flow run(const Statements& statements, Scope& scope, Text& out) {
    for (const auto& statement : statements) {
      line_ = statement->line;
      count_step();
      const Flow flow = run(*statement, scope, out);
      if (out.size() > options_.most_bytes)
        fail(fmt::format("more than {} bytes", options_.most_bytes));
      if (flow != Flow::kNormal)
        return flow;
    }
    return Flow::kNormal;
  }

  Flow run(const Statement& statement, Scope& scope, Text& out) {
    switch (statement.kind) {
      case StatementKind::kData:
        out.append(statement.text);
        break;
      case StatementKind::kPrint:
        out.append(value_of(*statement.expression, scope).printed());
        break;
      case StatementKind::kIf:
        return run(
            value_of(*statement.expression, scope).is_true()
                ? statement.body
                : statement.otherwise,
            scope,
            out);
      case StatementKind::kFor:
        return run_loop(statement, scope, out);
      case StatementKind::kSet:
        set(statement, value_of(*statement.expression, scope), scope);
        break;
      case StatementKind::kSetBlock:
        set(statement, body_of(statement, scope), scope);
        break;
      case StatementKind::kFilterBlock:
        out.append(body_of(statement, scope).printed());
        break;
      case StatementKind::kMacro:
        scope.variables[statement.text] = macro(statement, scope);
        break;
      case StatementKind::kGeneration: {
        const Inner inner(*this, &scope);
        Text text;
        const Flow flow = run(statement.body, *inner, text);
        text.mark(message_, Mark::Kind::kGeneration);
        out.append(text);
        return flow;
      }
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNormal;
  }

  Value body_of(const Statement& statement, const Scope& scope) {
    const Inner inner(*this, &scope);
    Text text;
    run(statement.body, *inner, text);
    Value body(std::move(text));
    if (!statement.filters)
      return body;
    inner->variables[kBodyName] = std::move(body);
    return value_of(*statement.filters, *inner);
  }

  void set(const Statement& statement, Value value, Scope& scope) {
    line_ = statement.line;
    if (statement.attribute.empty())
      return bind(statement.names, std::move(value), scope);
    const Value* found = scope.find(statement.names[0]);
    if (found == nullptr || !found->is_dict() || !found->dict().is_namespace)
      fail(fmt::format(
          "'{}.{}' is set, but '{}' is no namespace",
          statement.names[0],
          statement.attribute,
          statement.names[0]));
    if (value.is_dict() && value.dict().is_namespace)
      fail("a namespace in a namespace is not supported");
    found->dict()[statement.attribute] = std::move(value);
  }

  void bind(const std::vector<std::string>& names, Value value, Scope& scope) {
    if (names.size() == 1) {
      scope.variables[names[0]] = std::move(value);
      return;
    }
    const List items = checked([&] { return items_of(value); });
    if (items.size() != names.size())
      fail(fmt::format(
          "{} names, but {} values to give them", names.size(), items.size()));
    for (size_t i = 0; i < names.size(); ++i)
      scope.variables[names[i]] = items[i];
  }

  // As Jinja compiles it: {% else %} runs where no round came to its end.
  Flow run_loop(const Statement& statement, const Scope& scope, Text& out) {
    const Value iterable = value_of(*statement.expression, scope);
    List items = checked([&] { return items_of(iterable); });
    if (statement.condition) {
      List chosen;
      for (const Value& item : items) {
        const Inner inner(*this, &scope);
        bind(statement.names, item, *inner);
        if (value_of(*statement.condition, *inner).is_true())
          chosen.push_back(item);
      }
      items = std::move(chosen);
    }
    const int32_t outer_message = message_;
    bool is_complete = false;
    for (size_t i = 0; i < items.size(); ++i) {
      count_step();
      const Inner inner(*this, &scope);
      if (statement.uses_loop)
        inner->variables["loop"] = loop_of(items, i);
      bind(statement.names, items[i], *inner);
      if (items[i].is_dict() && items[i].dict().message != Mark::kNoMessage)
        message_ = items[i].dict().message;
      const Flow flow = run(statement.body, *inner, out);
      if (flow == Flow::kBreak)
        break;
      is_complete = is_complete || flow == Flow::kNormal;
    }
    message_ = outer_message;
    if (is_complete)
      return Flow::kNormal;
    const Inner inner(*this, &scope);
    return run(statement.otherwise, *inner, out);
  }

  Value macro(const Statement& statement, const Scope& scope) {
    for (const Scope* kept = &scope; kept != nullptr; kept = kept->outer)
      kept->is_kept = true;
    return Function([this, &statement, &scope](const CallArguments& arguments) {
      if (++calls_ > kMostCalls)
        throw Fault("macros call one another too deeply");
      const Inner inner(*this, &scope);
      const auto& names = statement.names;
      if (arguments.positional.size() > names.size())
        throw Fault(fmt::format(
            "the macro '{}' takes {} arguments", statement.text, names.size()));
      for (const auto& named : arguments.named) {
        if (std::find(names.begin(), names.end(), named.first) == names.end())
          throw Fault(fmt::format(
              "the macro '{}' has no parameter '{}'",
              statement.text,
              named.first));
      }
      const size_t without = names.size() - statement.defaults.size();
      for (size_t i = 0; i < names.size(); ++i) {
        const Value* given = arguments.find(i, names[i]);
        if (given != nullptr)
          inner->variables[names[i]] = *given;
        else if (i >= without)
          inner->variables[names[i]] =
              value_of(*statement.defaults[i - without], *inner);
        else
          inner->variables[names[i]] = Undefined{names[i]};
      }
      Text text;
      const int line = line_;
      run(statement.body, *inner, text);
      line_ = line;
      --calls_;
      return Value(std::move(text));
    });
  }

  // What `call` returns; a Fault of it is the template's, at this line.
  template <typename Call>
  auto checked(const Call& call) -> decltype(call()) {
    try {
      return call();
    } catch (const Fault& fault) {
      fail(fault.what());
    }
  }

  Value value_of(const Expression& expression, const Scope& scope) {
    count_step();
    line_ = expression.line;
    const auto part = [&](size_t i) {
      return value_of(*expression.parts[i], scope);
    };
    switch (expression.kind) {
      case Kind::kConstant:
        return expression.value;
      case Kind::kName: {
        const Value* found = scope.find(expression.name);
        return found ? *found : Value(Undefined{expression.name});
      }
      case Kind::kList: {
        List list;
        for (size_t i = 0; i < expression.parts.size(); ++i)
          list.push_back(part(i));
        return list;
      }
      case Kind::kDict:
        return dict_of(expression, scope);
      case Kind::kNot:
        return !part(0).is_true();
      case Kind::kAnd: {
        Value left = part(0);
        return left.is_true() ? part(1) : left;
      }
      case Kind::kOr: {
        Value left = part(0);
        return left.is_true() ? left : part(1);
      }
      case Kind::kConditional:
        if (part(0).is_true())
          return part(1);
        return expression.parts[2] ? part(2) : Value(Undefined{"else"});
      case Kind::kComparison:
        return comparison(expression, scope);
      case Kind::kCall:
      case Kind::kFilter:
      case Kind::kTest:
        return call(expression, scope);
      default:
        return computed(expression, scope);
    }
  }

  // Evaluates an expression whose operands are all computed first.
  Value computed(const Expression& expression, const Scope& scope) {
    List parts;
    for (const auto& part : expression.parts)
      parts.push_back(part ? value_of(*part, scope) : Value(None{}));
    line_ = expression.line;
    return checked([&]() -> Value {
      switch (expression.kind) {
        case Kind::kAttribute:
          return attribute(parts[0], expression.name);
        case Kind::kItem:
          return item_of(parts[0], parts[1]);
        case Kind::kSlice:
          return slice(parts[0], parts[1], parts[2], parts[3]);
        case Kind::kNegative:
          return negative(parts[0]);
        case Kind::kPositive:
          return parts[0];
        default:
          BRIGADE_ASSERT(expression.kind == Kind::kBinary);
          return binary(expression.name, parts[0], parts[1]);
      }
    });
  }

  // As Jinja: a method of a dict hides an entry of its name.
  static Value attribute(const Value& operand, const std::string& name) {
    const bool has_methods = operand.is_dict() &&
                             !operand.dict().is_namespace &&
                             operand.dict().find("index0") == nullptr;
    if (has_methods && is_dict_method(name))
      return Function([operand, name](const CallArguments& arguments) {
        return *call_method(operand, name, arguments);
      });
    if (has_methods && is_changing_dict_method(name))
      return Undefined{name};
    return attribute_of(operand, name);
  }

  Value dict_of(const Expression& expression, const Scope& scope) {
    auto dict = std::make_shared<Dict>();
    for (size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
      const Value key = value_of(*expression.parts[i], scope);
      if (!key.is_text())
        fail("keys of a mapping that are no strings are not supported");
      (*dict)[key.text().bytes()] = value_of(*expression.parts[i + 1], scope);
    }
    return dict;
  }

  Value comparison(const Expression& expression, const Scope& scope) {
    Value left = value_of(*expression.parts[0], scope);
    for (size_t i = 0; i < expression.operators.size(); ++i) {
      Value right = value_of(*expression.parts[i + 1], scope);
      line_ = expression.line;
      if (!checked(
              [&] { return compares(expression.operators[i], left, right); }))
        return false;
      left = std::move(right);
    }
    return true;
  }

  CallArguments arguments_of(const Expression& expression, const Scope& scope) {
    CallArguments arguments;
    for (size_t i = 1; i < expression.parts.size(); ++i)
      arguments.positional.push_back(value_of(*expression.parts[i], scope));
    for (const auto& [name, value] : expression.named)
      arguments.named.emplace_back(name, value_of(*value, scope));
    return arguments;
  }

  Value call(const Expression& expression, const Scope& scope) {
    const Expression& callee = *expression.parts[0];
    const bool is_method =
        expression.kind == Kind::kCall && callee.kind == Kind::kAttribute;
    const Value operand =
        value_of(is_method ? *callee.parts[0] : callee, scope);
    const CallArguments arguments = arguments_of(expression, scope);
    line_ = expression.line;
    return checked([&]() -> Value {
      if (expression.kind == Kind::kFilter)
        return apply_filter(expression.name, operand, arguments);
      if (expression.kind == Kind::kTest)
        return passes_test(expression.name, operand, arguments);
      if (is_method) {
        if (auto result = call_method(operand, callee.name, arguments))
          return *result;
      }
      const Value function =
          is_method ? attribute_of(operand, callee.name) : operand;
      if (!function.is_function())
        throw Fault(fmt::format(
            "'{}' is called, but it is {}",
            callee.name,
            function.is_undefined()
                ? "undefined"
                : fmt::format("a value of type {}", function.type())));
      return function.function()(arguments);
    });
  }

  void count_step() {
    if (++steps_ > options_.most_steps)
      fail(fmt::format("more than {} steps", options_.most_steps));
  }

  [[noreturn]] void fail(const std::string& what) const {
    fail_at_line(options_.name, line_, what);
  }

  const EvaluateOptions& options_;
  Scope globals_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  // The one that the innermost loop over messages is at.
  int32_t message_ = Mark::kNoMessage;
  int line_ = 1;
  int calls_ = 0;
  int64_t steps_ = 0;
};

}  // namespace

Text evaluate(
    const Statements& statements,
    const Dict& variables,
    const EvaluateOptions& options) {
  return Evaluator(variables, options).run(statements);
}

}  // namespace brigade::jinja

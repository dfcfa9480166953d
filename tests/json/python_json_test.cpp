// The expected values are those of Python's json.loads().
#include "brigade/json/python_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PythonJson, TakesWhatPythonWrites) {
  const json value = parse_python_json(
      R"({"a": NaN, "b": [Infinity, -Infinity], "c": "NaN \" Infinity",
          "d": 1, "d": -2})",
      {"model", "FILE"});
  EXPECT_EQ(value["a"], "NaN");
  EXPECT_EQ(value["b"], (json{"Infinity", "-Infinity"}));
  EXPECT_EQ(value["c"], "NaN \" Infinity");
  EXPECT_EQ(value["d"], -2);
}

TEST(PythonJson, RefusesWhatPythonRefuses) {
  for (const char* text : {"{\"a\": nan}", "{\"a\": 1,}", "{\"a\": Inf}"}) {
    EXPECT_THAT(
        [&] {
          parse_python_json(text, {"model", "FILE"});
        },
        ThrowsMessage<DataError>(HasSubstr("FILE:1:")));
  }
}

}  // namespace
}  // namespace brigade

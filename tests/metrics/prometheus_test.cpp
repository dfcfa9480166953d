#include "brigade/metrics/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Prometheus, EveryLineFollowsItsTextFormat) {
  StepMetrics metrics{.step = 3, .loss = 2.5, .memory_gb = 1.5};
  metrics.step_ms = 250;
  metrics.eval_loss = 3.5;
  std::istringstream text(prometheus_text(metrics, "a\"b\\c\nd"));
  // Prometheus' "Exposition formats": comments, and NAME{LABELS} VALUE.
  const std::regex form(
      R"((# (HELP|TYPE) brigade_[a-z_]+ .+)|)"
      R"((brigade_[a-z_]+\{run="([^"\\\n]|\\["\\n])*"\} [-+0-9.e]+))");
  int lines = 0;
  for (std::string line; std::getline(text, line); ++lines)
    EXPECT_TRUE(std::regex_match(line, form)) << line;
  EXPECT_EQ(lines % 3, 0);
  const std::string plain = prometheus_text(metrics, "run");
  EXPECT_THAT(plain, HasSubstr("brigade_step{run=\"run\"} 3\n"));
  EXPECT_THAT(plain, HasSubstr("brigade_loss{run=\"run\"} 2.5\n"));
  EXPECT_THAT(plain, HasSubstr("brigade_memory_bytes{run=\"run\"} 1500000000"));
  EXPECT_THAT(plain, HasSubstr("brigade_step_seconds{run=\"run\"} 0.25\n"));
  EXPECT_THAT(plain, HasSubstr("brigade_evaluation_loss{run=\"run\"} 3.5\n"));
  metrics.eval_loss.reset();
  EXPECT_THAT(prometheus_text(metrics, "run"), Not(HasSubstr("evaluation")));
}

}  // namespace
}  // namespace brigade

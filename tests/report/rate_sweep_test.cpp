// Tables, slopes and file of `brigade tune-rate`.
#include "brigade/report/rate_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// A class whose change doubles with the width, and one whose does not.
RateSweep small_sweep() {
  RateSweep sweep;
  sweep.config_hash = "abc";
  sweep.steps = 20;
  sweep.checked_steps = 5;
  sweep.widths = {64, 128, 256};
  sweep.rates = {0.001, 0.002};
  sweep.checked_rate = 0.002;
  const auto add = [&](int64_t width, double rate, double loss) {
    const auto growth = static_cast<double>(width) / 64;
    sweep.trials.push_back(
        {width,
         rate,
         loss,
         {{"embedding", 1, 0.5}, {"layer 0", 1, 0.25 * growth}}});
  };
  add(64, 0.001, 3);
  add(64, 0.002, 2.5);
  add(128, 0.001, 2.25);
  add(128, 0.002, 2.5);
  add(256, 0.002, 2);
  return sweep;
}

TEST(RateSweep, ASlopeIsTheExponentOfTheWidth) {
  EXPECT_NEAR(*log_slope({64, 128, 256}, {3, 6, 12}), 1, 1e-12);
  EXPECT_NEAR(*log_slope({64, 128, 256}, {4, 2, 1}), -1, 1e-12);
  EXPECT_NEAR(*log_slope({64, 256}, {5, 5}), 0, 1e-12);
  EXPECT_EQ(log_slope({64}, {5}), std::nullopt);
  EXPECT_EQ(log_slope({64, 64}, {5, 6}), std::nullopt);
  EXPECT_EQ(log_slope({64, 128}, {0, 6}), std::nullopt);
}

TEST(RateSweep, TheTablesShowEveryWidth) {
  RateSweep sweep = small_sweep();
  EXPECT_EQ(
      coordinate_table(sweep),
      "activation           64        128        256      slope\n"
      "embedding        0.5000     0.5000     0.5000      +0.00\n"
      "layer 0          0.2500     0.5000     1.0000      +1.00\n");
  EXPECT_EQ(
      loss_table(sweep),
      "rate                 64        128        256\n"
      "0.001           3.0000     2.2500*         - \n"
      "0.002           2.5000*    2.5000     2.0000*\n");
  sweep.trials.back().loss.reset();
  sweep.trials.back().activations.clear();
  EXPECT_THAT(loss_table(sweep), HasSubstr("not finite"));
  EXPECT_THAT(coordinate_table(sweep), HasSubstr("not finite"));
  EXPECT_EQ(sweep.best_rate(256), std::nullopt);
}

TEST(RateSweep, ItsFileHasItsTrials) {
  RateSweep sweep = small_sweep();
  sweep.trials[1].loss.reset();
  sweep.trials[1].activations.clear();
  const std::string text = sweep_to_text(sweep);
  EXPECT_EQ(trials_of(text, "x.json", sweep), sweep.trials);
  EXPECT_THAT(text, HasSubstr("\"128\": 0.001"));
}

TEST(RateSweep, AFileOfAnotherConfigOrOfNothingIsRefused) {
  const RateSweep sweep = small_sweep();
  const std::string text = sweep_to_text(sweep);
  RateSweep other = sweep;
  other.config_hash = "def";
  EXPECT_THROW(trials_of(text, "x.json", other), ConfigError);
  other = sweep;
  other.steps = 21;
  EXPECT_THROW(trials_of(text, "x.json", other), ConfigError);
  other = sweep;
  other.checked_steps = 6;
  EXPECT_THAT(
      [&] { trials_of(text, "x.json", other); },
      ThrowsMessage<ConfigError>(
          HasSubstr("'x.json' has trials of another config, --steps or "
                    "--check-after")));
  for (const char* none : {"", "{", "{}", "[1]", R"({"config_hash": 3})"}) {
    EXPECT_THAT(
        [&] { trials_of(none, "x.json", sweep); },
        ThrowsMessage<DataError>(HasSubstr("'x.json'")))
        << none;
  }
}

TEST(RateSweep, ItsPictureHasALineOfEveryClassAndWidth) {
  const std::string svg = sweep_svg(small_sweep());
  for (const char* name :
       {"<svg", "embedding", "layer 0", "width 64", "width 256", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(name));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(sweep_svg(RateSweep{}), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace brigade

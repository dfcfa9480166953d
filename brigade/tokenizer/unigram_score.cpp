#include "brigade/tokenizer/unigram_score.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "brigade/base/check.h"

namespace brigade {
namespace {

double power_of_ten(int exponent) {
  return std::strtod(fmt::format("1e{}", exponent).c_str(), nullptr);
}

}  // namespace

double engine_score(double nearest) {
  if (nearest == 0 || !std::isfinite(nearest))
    return nearest;
  char text[32];
  const auto written = std::to_chars(
      text,
      text + sizeof(text),
      std::abs(nearest),
      std::chars_format::scientific);
  BRIGADE_ASSERT(written.ec == std::errc(), "{} is not printed", nearest);
  // "d.ddde-XX": at most 17 digits, which fit 64 bits.
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text;
  for (bool fraction = false; *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    if (fraction)
      --exponent;
  }
  ++at;
  if (*at == '+')
    ++at;
  int scientific = 0;
  std::from_chars(at, written.ptr, scientific);
  exponent += scientific;

  auto value = static_cast<double>(digits);
  for (; exponent < -308; exponent += 308)
    value /= 1e308;
  value = exponent < 0 ? value / power_of_ten(-exponent)
                       : value * power_of_ten(exponent);
  return std::signbit(nearest) ? -value : value;
}

}  // namespace brigade

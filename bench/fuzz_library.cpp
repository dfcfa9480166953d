// Random training programs (tests/support/random_program.h), wrapped and in
// plain torch, for as long as one likes. Prints each program that differs;
// exits 1 if any did. A seed names the same program everywhere.
//
//   build/release/fuzz_library [SECONDS [FIRST_SEED]]    # default 60 1000
//   build/release/fuzz_library 1 1234                    # mostly that one
//   alone
#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "bench/arguments.h"
#include "tests/support/run_program.h"

int main(int argc, char** argv) {
  using namespace brigade;
  return bench::exit_code_of([&] {
    const int seconds =
        argc > 1 ? bench::positive_number("SECONDS", argv[1]) : 60;
    const int first =
        argc > 2 ? bench::positive_number("FIRST_SEED", argv[2]) : 1000;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    int programs = 0;
    int wrong = 0;
    for (; std::chrono::steady_clock::now() < end; ++programs) {
      const auto program = brigade::testing::draw_program(
          static_cast<uint64_t>(first + programs));
      const auto differences = brigade::testing::differences_of(program);
      if (differences.empty())
        continue;
      ++wrong;
      fmt::print("{}\n", brigade::testing::describe(program));
      for (const auto& line : differences)
        fmt::print("  {}\n", line);
      std::fflush(stdout);
    }
    fmt::print("{} programs from seed {}, {} differ\n", programs, first, wrong);
    return wrong == 0 ? 0 : 1;
  });
}

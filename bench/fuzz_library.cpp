// Random training programs (tests/support/random_program.h), wrapped and in
// plain torch, for as long as one likes. Prints each program that differs;
// exits 1 if any did. A seed names the same program everywhere.
//
//   build/release/fuzz_library [SECONDS [FIRST_SEED]]    # default 60 1000
//   build/release/fuzz_library 1 1234                    # mostly that one
//   alone
//   mpirun -n 4 build/release/fuzz_library 60            # over MPI
#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "bench/arguments.h"
#include "brigade/launch/environment.h"
#include "tests/support/ranks_over_mpi.h"
#include "tests/support/run_program.h"

int main(int argc, char** argv) {
  using namespace brigade;
  namespace testing = brigade::testing;
  return bench::exit_code_of([&] {
    const int seconds =
        argc > 1 ? bench::positive_number("SECONDS", argv[1]) : 60;
    const int first =
        argc > 2 ? bench::positive_number("FIRST_SEED", argv[2]) : 1000;
    const bool is_mpi = read_environment(process_environment()).has_mpi;
    if (is_mpi)
      testing::run_ranks_over_mpi();
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    const auto goes_on = [&] {
      const bool has_time = std::chrono::steady_clock::now() < end;
      return is_mpi ? testing::from_first_rank(has_time ? "yes" : "") == "yes"
                    : has_time;
    };
    int programs = 0;
    int wrong = 0;
    for (; goes_on(); ++programs) {
      const auto program =
          testing::draw_program(static_cast<uint64_t>(first + programs));
      const auto differences = testing::differences_of(program);
      if (differences.empty())
        continue;
      ++wrong;
      fmt::print("{}\n", testing::describe(program));
      for (const auto& line : differences)
        fmt::print("  {}\n", line);
      std::fflush(stdout);
    }
    if (!is_mpi || testing::mpi_rank() == 0)
      fmt::print(
          "{} programs from seed {}, {} differ\n", programs, first, wrong);
    if (is_mpi)
      testing::wait_for_all_ranks();
    return wrong == 0 ? 0 : 1;
  });
}

// brigade: understands the command line, does what needs no libtorch, and
// starts brigade-torch for the rest (hand_over.cpp).
#include <exception>

#include "brigade/launch/program_start.h"
#include "cli/app.h"

namespace brigade::cli {

namespace {

[[noreturn]] void on_terminate() {
  end_with_current_exception(fail_with_current_exception);
}

}  // namespace

}  // namespace brigade::cli

int main(int argc, char** argv) {
  brigade::prepare_program();
  std::set_terminate(brigade::cli::on_terminate);
  return brigade::cli::run_and_report(
      argc, argv, brigade::cli::fail_with_current_exception);
}

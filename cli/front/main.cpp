// brigade: understands the command line, does what needs no libtorch, and
// starts brigade-torch for the rest (hand_over.cpp).
#include "brigade/launch/program_start.h"
#include "cli/app.h"

int main(int argc, char** argv) {
  brigade::prepare_program();
  try {
    return brigade::cli::run_program(argc, argv);
  } catch (...) {
    return brigade::cli::fail_with_current_exception();
  }
}

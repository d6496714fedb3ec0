// The version of the arguments of all functions of the library; library.py compares it with its own.
extern "C" int mmattn_version() { return 4; }

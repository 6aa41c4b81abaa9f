module hostloop.csi.dev/test/tools/actionlint

go 1.26

module muster.test/pause

go 1.25
